//! Files of machines that are known, what is odd in files from elsewhere, and anything at all.

use super::super::{Mesh, PathClass, preset};
use super::*;
use proptest::prelude::*;

/// The hybrid cube mesh as `nvidia-smi` prints it on a machine whose GPUs are in another order.
const CUBE_MESH_MATRIX: &str = "
        GPU0 GPU1 GPU2 GPU3 GPU4 GPU5 GPU6 GPU7 CPU Affinity
GPU0     X   NV1  NV1  NV2  SYS  SYS  NV2  SYS  0-95
GPU1    NV1   X   NV2  NV1  SYS  SYS  SYS  NV2  0-95
GPU2    NV1  NV2   X   NV2  NV1  SYS  SYS  SYS  0-95
GPU3    NV2  NV1  NV2   X   SYS  NV1  SYS  SYS  0-95
GPU4    SYS  SYS  NV1  SYS   X   NV2  NV1  NV2  0-95
GPU5    SYS  SYS  SYS  NV1  NV2   X   NV2  NV1  0-95
GPU6    NV2  SYS  SYS  SYS  NV1  NV2   X   NV1  0-95
GPU7    SYS  NV2  SYS  SYS  NV2  NV1  NV1   X   0-95
";

/// Bridges of two A100 each in a node, as one vendor sells them.
const PAIRS_MATRIX: &str = "\
\tGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV12\tNODE\tNODE\tSYS\t0-31\t0
GPU1\tNV12\t X \tNODE\tNODE\tSYS\t0-31\t0
GPU2\tNODE\tNODE\t X \tNV12\tSYS\t0-31\t0
GPU3\tNODE\tNODE\tNV12\t X \tSYS\t0-31\t0
NIC0\tSYS\tSYS\tSYS\tSYS\t X \t\t
";

/// Two GPUs behind a Broadcom switch with two levels, whose uplink is slow, and an NVSwitch of which one part is
/// hidden.
const SWITCHED_XML: &str = r#"<!-- a comment --><system version="1">
  <cpu numaid="0" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
    <pci busid="0000:08:00.0" class="0x060400" vendor="0x1000" device="0xc030" link_speed="5.0 GT/s PCIe" link_width="16">
      <pci busid="0000:0d:00.0" class="0x060400" vendor="0x1000" device="0xc030" link_speed="32.0 GT/s PCIe" link_width="16">
        <pci busid="0000:0f:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16">
          <gpu dev="1" sm="90" rank="1" gdr="1">
            <nvlink target="0000:1c:00.0" count="10" tclass="0x068000"/>
            <nvlink target="fffffff:ff:ff.0" count="8" tclass="0x"/>
          </gpu>
        </pci>
      </pci>
      <pci busid="0000:0A:00.0" class="0x030200" link_speed="" link_width="0">
        <gpu dev="0" sm="90" rank="0" gdr="1">
          <nvlink target="0000:1c:00.0" count="18" tclass="0x068000"/>
          <nvlink target="0000:0a:00.0" count="2" tclass="0x030200"/>
        </gpu>
      </pci>
      <pci busid="0000:0c:00.0" class="0x020000" link_speed="32.0 GT/s PCIe" link_width="16">
        <nic>
          <net name="mlx5_0" dev="0" speed="180000" port="1" guid="0x1"/>
          <net name="mlx5_1" dev="1" speed="180000" port="2" guid="0x1"/>
        </nic>
      </pci>
    </pci>
    <unknown/>
  </cpu>
</system>
"#;

fn mentions(reading: &Reading, words: &str) -> bool {
    reading.warnings.iter().any(|warning| warning.contains(words))
}

#[test]
fn the_cube_mesh_is_read_from_its_matrix() {
    let reading = read("mesh", CUBE_MESH_MATRIX).unwrap();
    let mesh = Mesh::of(&reading.cluster).unwrap();
    assert_eq!((mesh.hamiltonian_cycles().len(), mesh.disjoint_cycles(3).len()), (30, 13));
    assert_eq!(reading.cluster.ring_orders().len(), preset("dgx1v", None).unwrap().ring_orders().len());
    // GPUs 0 to 3 at one CPU, and 4 to 7 at the other.
    assert!(mentions(&reading, "hides PCI Express"));
}

#[test]
fn pairs_of_gpus_have_a_cliff_between_them() {
    let cluster = read("pairs", PAIRS_MATRIX).unwrap().cluster;
    assert_eq!(cluster.rank_count(), 4);
    let near = cluster.path(0, 1);
    assert_eq!((near.class, near.bandwidth_gb_per_s), (PathClass::NvLink, 240.0));
    let far = cluster.path(0, 2);
    assert_eq!((far.class, far.bandwidth_gb_per_s), (PathClass::Processor, 20.0));
}

#[test]
fn more_nvlinks_than_a_gpu_has_are_those_of_a_switch() {
    let rows = (0..3).map(|one| {
        let cells = (0..3).map(|other| if one == other { "X " } else { "NV12 " });
        format!("GPU{one} {}\n", cells.collect::<String>())
    });
    let text = format!("GPU0 GPU1 GPU2\n{}", rows.collect::<String>());
    let reading = read("switch", &text).unwrap();
    assert_eq!(reading.cluster.path(0, 2).bandwidth_gb_per_s, 240.0);
    assert!(mentions(&reading, "NVSwitch"));
}

#[test]
fn devices_that_are_near_by_pci_express_are_put_below_switches() {
    let text = "\
GPU0 GPU1 GPU2 GPU3 NIC0
GPU0 X PIX PXB NODE PIX
GPU1 PIX X PXB NODE PIX
GPU2 PXB PXB X NODE PXB
GPU3 NODE NODE NODE X NODE
NIC0 PIX PIX PXB NODE X
";
    let cluster = read("pcie", text).unwrap().cluster;
    let classes = [(0, 1), (0, 2), (0, 3)].map(|(from, to)| cluster.path(from, to).class);
    assert_eq!(classes, [PathClass::OneSwitch, PathClass::SeveralSwitches, PathClass::Processor]);
}

#[test]
fn what_is_odd_in_an_xml_is_read_as_nccl_reads_it_and_said() {
    let reading = read("odd", SWITCHED_XML).unwrap();
    let cluster = &reading.cluster;
    // By their numbers, not by their places in the file.
    assert_eq!((cluster.rank_count(), cluster.describe_node(cluster.node_of_rank(0)).as_str()), (2, "gpu0"));
    // All NVSwitches are one node, and what is hidden is one too.
    let path = cluster.path(0, 1);
    assert_eq!((path.class, path.hops.len(), path.bandwidth_gb_per_s), (PathClass::NvLink, 2, 18.0 * 20.6));
    let width = |name: &str| {
        let link = cluster.links().iter().find(|link| cluster.describe_node(link.ends[1]) == name).unwrap();
        (link.class.to_string(), link.count, link.bandwidth_gb_per_s)
    };
    assert_eq!(width("gpu0"), ("pcie3".to_owned(), 16, 12.0));
    // The uplink is slow; the two levels below it are one switch.
    assert_eq!(width("pcie-0000:08:00.0"), ("pcie2".to_owned(), 16, 6.0));
    assert_eq!(cluster.nodes().iter().filter(|node| node.name.starts_with("pcie")).count(), 1);
    for words in ["itself", "not visible", "assumed 8 GT/s", "assumed 16 lanes", "2 ports", "<unknown>"] {
        assert!(mentions(&reading, words), "{words}: {:?}", reading.warnings);
    }
}

#[test]
fn the_smallest_file_has_cpus_for_ranks_and_a_warning_for_each_device() {
    let text = r#"<system version="1"><cpu numaid="0"><pci busid="0000:00:16.0"/></cpu><cpu numaid="1"/></system>"#;
    let reading = read("small", text).unwrap();
    assert_eq!(reading.cluster.rank_count(), 2);
    assert_eq!(reading.cluster.path(0, 1).class, PathClass::Processors);
    assert!(mentions(&reading, "no class") && mentions(&reading, "Broadwell"));
}

#[test]
fn a_partial_file_has_gpus_without_nvlink() {
    let gpu = |bus| format!(r#"<pci busid="{bus}" class="0x030200" link_speed="16 GT/s" link_width="16"/>"#);
    let cpu = r#"<cpu numaid="0" arch="x86_64" vendor="AuthenticAMD" familyid="23" modelid="49">"#;
    let text = format!(r#"<system version="1">{cpu}{}{}</cpu></system>"#, gpu("0001:00:00.0"), gpu("0002:00:00.0"));
    let reading = read("partial", &text).unwrap();
    let path = reading.cluster.path(0, 1);
    assert_eq!((path.class, path.bandwidth_gb_per_s), (PathClass::Processor, 24.0));
    assert!(mentions(&reading, "only the address is known"));
}

#[test]
fn malformed_texts_are_errors_with_their_line_and_reason() {
    let deep = "<pci busid='a'>".repeat(40) + &"</pci>".repeat(40);
    for (text, expected) in [
        ("", "line 1: expected the headings of a matrix, found nothing"),
        ("GPU0 GPU1\nGPU0 X NV1\n", "line 3: expected 2 rows, found 1"),
        ("GPU0 GPU1\nGPU0 X NV1\nGPU1 NV2 X\n", "line 3: expected X on the diagonal and as much both ways"),
        ("GPU0\nGPU1 X\n", "line 2: expected the row of \"GPU0\", found \"GPU1\""),
        ("GPU0\n\nGPU0 NVL\n", "line 3: expected X, NV#, PIX, PXB, PHB, NODE or SYS below GPU0, found \"NVL\""),
        ("<system>\n<cpu>\n</system>", "line 3: expected XML: "),
        ("<graphs version='1'/>", "line 1: expected a topology (<system>), found a file of graphs"),
        ("<system version='1'>\n<cpu><pci/></cpu></system>", "line 2: expected a busid of the <pci>, found none"),
        ("<system version='1'>\n</system>", "expected at least one GPU or processor"),
        (
            "<system version='1'>\n<cpu><pci busid='a' link_width='x'/></cpu></system>",
            "line 2: expected a whole number as link_width, found \"x\"",
        ),
        (&format!("<system version='1'><cpu>{deep}</cpu></system>"), "line 1: expected at most 32 bridges"),
    ] {
        let error = read("wrong", text).map(|reading| reading.cluster.rank_count()).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{text:?}: {error}");
    }
}

/// A text with a few of its bytes changed, left out or doubled.
fn mutated(text: &'static str) -> impl Strategy<Value = String> {
    prop::collection::vec((0..text.len(), 0..4_u8, any::<u8>()), 1..8).prop_map(move |changes| {
        let mut bytes = text.as_bytes().to_vec();
        for (place, change, byte) in changes {
            let place = place % bytes.len().max(1);
            match change {
                0 if !bytes.is_empty() => bytes[place] = byte & 0x7f,
                1 if !bytes.is_empty() => drop(bytes.remove(place)),
                2 => bytes.insert(place, byte & 0x7f),
                _ => bytes.extend_from_within(place..(place + 100).min(bytes.len())),
            }
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

proptest! {
    #[test]
    fn no_text_makes_a_reader_panic(
        text in prop_oneof![mutated(CUBE_MESH_MATRIX), mutated(PAIRS_MATRIX), mutated(SWITCHED_XML), "(?s).{0,200}"],
    ) {
        if let Ok(reading) = read("any", &text) {
            for from in 0..reading.cluster.rank_count() {
                for to in 0..reading.cluster.rank_count() {
                    prop_assert!(reading.cluster.path(from, to).bandwidth_gb_per_s > 0.0);
                }
            }
        }
    }
}
