//! The caller's floating-point mode, put aside while the kernels run.
//!
//! Subnormals are kept and results are rounded to nearest even, whatever mode the caller's thread is in; afterwards it is in
//! that mode again.

/// Restores the mode when it goes.
pub(crate) struct FloatMode {
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    before: Option<Control>,
}

#[cfg(target_arch = "x86_64")]
type Control = u32;
#[cfg(target_arch = "aarch64")]
type Control = u64;

impl FloatMode {
    /// The mode that the kernels are written for.
    pub(crate) fn standard() -> FloatMode {
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        {
            let now = read();
            let standard = now & !NON_STANDARD;
            // Writing the register is slow, and hardly ever needed.
            let before = (now != standard).then(|| {
                write(standard);
                now
            });
            FloatMode { before }
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        FloatMode {}
    }
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
impl Drop for FloatMode {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            write(before);
        }
    }
}

/// MXCSR: denormals are zeros (6), rounding control (13, 14), flush to zero (15).
#[cfg(target_arch = "x86_64")]
const NON_STANDARD: Control = 1 << 6 | 3 << 13 | 1 << 15;

/// FPCR: flush to zero for halves (19), rounding mode (22, 23), flush to zero (24), default NaN (25).
#[cfg(target_arch = "aarch64")]
const NON_STANDARD: Control = 1 << 19 | 3 << 22 | 1 << 24 | 1 << 25;

#[cfg(target_arch = "x86_64")]
fn read() -> Control {
    let mut mode: Control = 0;
    // SAFETY: stores the register into `mode`, and nothing else.
    unsafe { core::arch::asm!("stmxcsr [{}]", in(reg) &raw mut mode, options(nostack, preserves_flags)) };
    mode
}

#[cfg(target_arch = "x86_64")]
fn write(mode: Control) {
    // SAFETY: changes how this thread rounds and treats subnormals until the guard restores it. Between the two only the
    // kernels calculate, and what they do is defined for the standard mode that is set here.
    unsafe { core::arch::asm!("ldmxcsr [{}]", in(reg) &raw const mode, options(nostack, readonly, preserves_flags)) };
}

#[cfg(target_arch = "aarch64")]
fn read() -> Control {
    let mode: Control;
    // SAFETY: reads the register, and nothing else.
    unsafe { core::arch::asm!("mrs {}, fpcr", out(reg) mode, options(nomem, nostack, preserves_flags)) };
    mode
}

#[cfg(target_arch = "aarch64")]
fn write(mode: Control) {
    // SAFETY: as on x86-64.
    unsafe { core::arch::asm!("msr fpcr, {}", in(reg) mode, options(nomem, nostack, preserves_flags)) };
}
