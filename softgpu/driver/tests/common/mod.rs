//! What the tests share: devices that no other test of the process uses, and calls that must succeed.

#![allow(
    dead_code,
    unused_imports,
    missing_docs,
    unreachable_pub,
    clippy::undocumented_unsafe_blocks,
    reason = "each test uses a part"
)]

use std::ffi::{CString, c_char, c_void};
use std::sync::Once;
use std::sync::atomic::{AtomicI32, Ordering};

pub use softcuda::raw::{In, Out};
pub use softcuda::*;

/// Fails, with the code's name, where a call did.
#[track_caller]
pub fn ok(code: i32) {
    if code != 0 {
        panic!("expected success, found {code}; said so far: {:?}", faults());
    }
}

/// The topology of most tests: many small devices, so that each test has its own.
pub fn start() {
    start_with("devices = 64\nworkers = 2\n[device]\nmultiprocessors = 4\nmemory_bytes = 1073741824\n");
}

/// Initialises the driver, if no other test of the process has.
pub fn start_with(topology: &str) {
    static START: Once = Once::new();
    START.call_once(|| {
        ok(unsafe { softgpu_configure(bytes_of(topology), topology.len()) });
        ok(unsafe { cuInit(0) });
    });
}

pub fn bytes_of(text: &str) -> In<c_char> {
    In::<u8>::from(text.as_bytes()).cast()
}

static NEXT: AtomicI32 = AtomicI32::new(0);

/// A device with its primary context.
#[derive(Clone, Copy, Debug)]
pub struct Gpu {
    pub ordinal: i32,
    pub context: Handle,
}

/// A device that nobody else has, its context current.
pub fn gpu() -> Gpu {
    start();
    device(NEXT.fetch_add(1, Ordering::Relaxed))
}

/// The device of an ordinal, its context current.
pub fn device(ordinal: i32) -> Gpu {
    let mut context = 0;
    ok(unsafe { cuDevicePrimaryCtxRetain((&mut context).into(), ordinal) });
    let gpu = Gpu { ordinal, context };
    gpu.enter();
    gpu
}

pub fn inject(text: &str) {
    ok(unsafe { softgpu_inject(bytes_of(text), text.len()) });
}

/// What was said about a device.
pub fn said_about(gpu: Gpu) -> String {
    let device = format!("device {}", gpu.ordinal);
    let all = faults();
    all.into_iter().filter(|line| line.contains(&device)).collect::<Vec<String>>().join("\n")
}

impl Gpu {
    pub fn enter(self) {
        ok(unsafe { cuCtxSetCurrent(self.context) });
    }

    pub fn alloc(self, bytes: usize) -> u64 {
        self.enter();
        let mut address = 0;
        ok(unsafe { cuMemAlloc_v2((&mut address).into(), bytes) });
        address
    }

    /// Memory that holds these words.
    pub fn words(self, words: &[u32]) -> u64 {
        let address = self.alloc(words.len() * 4);
        put(address, words);
        address
    }

    pub fn load(self, ptx: &str) -> Handle {
        self.enter();
        let image = CString::new(ptx).unwrap();
        let mut module = 0;
        ok(unsafe { cuModuleLoadData((&mut module).into(), image.as_c_str().into()) });
        module
    }

    pub fn function(self, ptx: &str, name: &str) -> Handle {
        function(self.load(ptx), name)
    }

    pub fn stream(self, flags: u32) -> Handle {
        self.enter();
        let mut stream = 0;
        ok(unsafe { cuStreamCreate((&mut stream).into(), flags) });
        stream
    }

    pub fn synchronise(self) -> i32 {
        self.enter();
        unsafe { cuCtxSynchronize() }
    }
}

pub fn function(module: Handle, name: &str) -> Handle {
    let name = CString::new(name).unwrap();
    let mut function = 0;
    ok(unsafe { cuModuleGetFunction((&mut function).into(), module, name.as_c_str().into()) });
    function
}

pub fn put(address: u64, words: &[u32]) {
    ok(unsafe { cuMemcpyHtoD_v2(address, words.as_ptr() as u64, words.len() * 4) });
}

pub fn get(address: u64, count: usize) -> Vec<u32> {
    let mut words = vec![0u32; count];
    ok(unsafe { cuMemcpyDtoH_v2(words.as_mut_ptr() as u64, address, count * 4) });
    words
}

pub fn event() -> Handle {
    let mut event = 0;
    ok(unsafe { cuEventCreate((&mut event).into(), 0) });
    event
}

pub fn pinned(bytes: usize) -> u64 {
    let mut address = 0;
    ok(unsafe { cuMemHostAlloc((&mut address).into(), bytes, 2) });
    address
}

/// A flag in pinned memory.
pub fn flag(address: u64) -> &'static std::sync::atomic::AtomicU32 {
    unsafe { std::sync::atomic::AtomicU32::from_ptr(address as *mut u32) }
}

/// Launches with 64-bit parameters.
pub fn launch(function: Handle, blocks: u32, threads: u32, stream: Handle, parameters: &[u64]) -> i32 {
    let places: Vec<In<c_void>> = parameters.iter().map(|value| In::from(value).cast()).collect();
    unsafe { cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, stream, In::from(&places[..]), In::NULL) }
}

pub fn launch_cooperative(function: Handle, blocks: u32, threads: u32, stream: Handle, parameters: &[u64]) -> i32 {
    let places: Vec<In<c_void>> = parameters.iter().map(|value| In::from(value).cast()).collect();
    unsafe { cuLaunchCooperativeKernel(function, blocks, 1, 1, threads, 1, 1, 0, stream, In::from(&places[..])) }
}

pub const KERNELS: &str = "
.version 7.8
.target sm_70
.address_size 64

.visible .global .align 4 .u32 counter = 7;

// data[i] += addend, for i of all threads.
.visible .entry add(.param .u64 data, .param .u64 addend) {
    .reg .b32 %r<8>;
    .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [data];
    ld.param.u32 %r1, [addend];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.u32 %r5, %r2, %r3, %r4;
    mul.wide.u32 %rd2, %r5, 4;
    add.s64 %rd3, %rd1, %rd2;
    ld.global.u32 %r6, [%rd3];
    add.u32 %r6, %r6, %r1;
    st.global.u32 [%rd3], %r6;
    ret;
}

// Says 1 at `begun`, waits until `go` is not 0, and then writes `value` at `data`.
.visible .entry wait_and_write(.param .u64 begun, .param .u64 go, .param .u64 data, .param .u64 value) {
    .reg .pred %p<2>;
    .reg .b32 %r<4>;
    .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [begun];
    ld.param.u64 %rd2, [go];
    ld.param.u64 %rd3, [data];
    ld.param.u32 %r2, [value];
    mov.u32 %r1, 1;
    st.release.sys.global.u32 [%rd1], %r1;
again:
    ld.acquire.sys.global.u32 %r3, [%rd2];
    setp.eq.u32 %p1, %r3, 0;
    @%p1 bra again;
    st.global.u32 [%rd3], %r2;
    ret;
}

// Says 1 at `begun`, waits until `go` is not 0, and then publishes `value` at `data`.
.visible .entry wait_and_publish(.param .u64 begun, .param .u64 go, .param .u64 data, .param .u64 value) {
    .reg .pred %p<2>;
    .reg .b32 %r<4>;
    .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [begun];
    ld.param.u64 %rd2, [go];
    ld.param.u64 %rd3, [data];
    ld.param.u32 %r2, [value];
    mov.u32 %r1, 1;
    st.release.sys.global.u32 [%rd1], %r1;
again:
    ld.acquire.sys.global.u32 %r3, [%rd2];
    setp.eq.u32 %p1, %r3, 0;
    @%p1 bra again;
    st.release.sys.global.u32 [%rd3], %r2;
    ret;
}

// The first thread of every block comes to a counter and waits until all of them have.
.visible .entry meet(.param .u64 arrivals) {
    .reg .pred %p<3>;
    .reg .b32 %r<5>;
    .reg .b64 %rd<2>;
    mov.u32 %r4, %tid.x;
    setp.ne.u32 %p2, %r4, 0;
    @%p2 ret;
    ld.param.u64 %rd1, [arrivals];
    mov.u32 %r1, %nctaid.x;
    atom.acq_rel.gpu.global.add.u32 %r2, [%rd1], 1;
again:
    ld.acquire.gpu.global.u32 %r3, [%rd1];
    setp.lt.u32 %p1, %r3, %r1;
    @%p1 bra again;
    ret;
}

.visible .entry trap_at_once() {
    trap;
    ret;
}
";
