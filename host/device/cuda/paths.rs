//! How devices reach each other.

use std::fmt;

use super::safe::Device;

/// How two devices reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Path {
    /// They are one.
    Same,
    /// Each reaches the other's memory, over NVLink or PCIe.
    Peer,
    /// By memory of the host that both reach.
    Host,
}

impl Path {
    /// Its name: `same`, `peer` or `host`.
    pub const fn name(self) -> &'static str {
        match self {
            Path::Same => "same",
            Path::Peer => "peer",
            Path::Host => "host",
        }
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// How each two of some devices reach each other, as far as it has been tried.
#[derive(Clone, Debug)]
pub struct Paths {
    devices: Vec<Device>,
    /// By the devices' places.
    matrix: Vec<Vec<Path>>,
    has_switch: bool,
    warnings: Vec<String>,
}

impl Paths {
    /// For devices of which each stands there once; `between` says how two of them reach each other, and what was seen of better
    /// paths that do not work.
    pub(crate) fn new<E>(
        devices: Vec<Device>,
        mut between: impl FnMut(&Device, &Device) -> Result<(Path, Vec<String>), E>,
    ) -> Result<Paths, E> {
        let mut matrix = vec![vec![Path::Same; devices.len()]; devices.len()];
        let mut warnings = Vec::new();
        for one in 0..devices.len() {
            for other in 0..one {
                let (path, seen) = between(&devices[other], &devices[one])?;
                (matrix[one][other], matrix[other][one]) = (path, path);
                warnings.extend(seen);
            }
        }
        Ok(Paths { devices, matrix, has_switch: false, warnings })
    }

    /// The devices, each once.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// The path between two devices, by their places among [`Paths::devices`].
    ///
    /// # Panics
    ///
    /// If there are no such places.
    pub fn path(&self, one: usize, other: usize) -> Path {
        self.matrix[one][other]
    }

    /// The path between two devices; by the host's memory if nothing is known of them.
    pub(crate) fn between(&self, one: &Device, other: &Device) -> Path {
        if one == other {
            return Path::Same;
        }
        let place = |device| self.devices.iter().position(|each| each == device);
        place(one).zip(place(other)).map_or(Path::Host, |(one, other)| self.matrix[one][other])
    }

    /// Says whether a switch with a reduction unit works among all devices, and what was seen if one should have.
    pub(crate) fn note_switch(&mut self, works: bool, seen: Vec<String>) {
        self.has_switch = works;
        self.warnings.extend(seen);
    }

    /// Whether all devices hang on a switch that reduces (NVSwitch from the third generation on), which has been tried: collectives on
    /// memory from [`Communicator::alloc`](crate::Communicator::alloc) can leave the work to it.
    pub fn has_switch(&self) -> bool {
        self.has_switch
    }

    /// Whether ranks on these devices, one for each entry, can leave work to a switch: it reaches a device's memory once, so no
    /// device may have two ranks.
    pub(crate) fn switches(&self, devices: &[Device]) -> bool {
        let is_new = |(place, device): (usize, &Device)| !devices[..place].contains(device);
        self.has_switch && devices.len() > 1 && devices.iter().enumerate().all(is_new)
    }

    /// Paths that should have worked and did not, with what was seen.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }
}
