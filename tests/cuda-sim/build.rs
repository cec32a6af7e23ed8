//! Gives the shared library the driver's own name, so that whoever opens it by path first
//! satisfies every later `dlopen("libcuda.so.1")` of the process with it.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
}
