//! How the shared library is linked: under the driver's name, never unloaded (its workers run on), and calling only itself even
//! where several copies of it are in one process.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("linux") {
        for argument in ["-soname,libcuda.so.1", "-z,nodelete", "-Bsymbolic"] {
            println!("cargo::rustc-cdylib-link-arg=-Wl,{argument}");
        }
    }
}
