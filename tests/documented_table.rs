//! The README's table of element types and reductions is the kernel table's. `TUTTI_BLESS=1` writes it anew.

use std::fs;
use std::path::Path;

const BEGIN: &str = "<!-- The kernel table; `TUTTI_BLESS=1 cargo test --test documented_table` writes it. -->\n";
const END: &str = "<!-- End of the kernel table. -->\n";

#[test]
fn the_readme_has_the_kernel_table() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    let text = fs::read_to_string(&path).expect("the README is there");
    let (before, rest) = text.split_once(BEGIN).expect("the README marks where the table begins");
    let (documented, after) = rest.split_once(END).expect("the README marks where the table ends");
    let table = tutti_codegen::generate::document();
    if std::env::var_os("TUTTI_BLESS").is_some_and(|value| value == "1") {
        fs::write(&path, [before, BEGIN, &table, END, after].concat()).expect("the README can be written");
    } else {
        assert_eq!(documented, table, "the README's table is stale: TUTTI_BLESS=1 cargo test --test documented_table");
    }
}
