//! Runs the verifier on every file of `tests/plans`.
//!
//! A file is a plan in its text form, headed by comments: what it shows, and what the verifier has to say. `# right` means
//! that it is right; `# error: …` is the text of one violation. All of them have to be there, in the verifier's order, and
//! no others. To see what the verifier says today, run with `TUTTI_PRINT_PLANS=1` and `--nocapture`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use tutti::plan::text;
use tutti::plan::verify::{Violation, verify};

fn plan_files() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/plans");
    let mut files: Vec<_> = fs::read_dir(folder)
        .expect("the folder is there")
        .map(|entry| entry.expect("the folder can be read").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "plan"))
        .collect();
    files.sort();
    files
}

/// What the verifier says about a file.
fn violations_of(path: &Path) -> Vec<Violation> {
    let text = fs::read_to_string(path).expect("the file can be read");
    let plan = text::parse(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    verify(&plan).err().unwrap_or_default()
}

#[test]
fn the_verifier_says_of_each_file_what_the_file_expects() {
    let mut wrong = String::new();
    let files = plan_files();
    assert!(!files.is_empty(), "no plan files");
    for path in files {
        let text = fs::read_to_string(&path).expect("the file can be read");
        let expected: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("# error: ")).collect();
        let right = text.lines().any(|line| line == "# right");
        assert_ne!(right, !expected.is_empty(), "{} says neither right nor error, or both", path.display());
        let found: Vec<_> = violations_of(&path).iter().map(ToString::to_string).collect();
        if std::env::var_os("TUTTI_PRINT_PLANS").is_some() {
            println!("== {}", path.display());
            found.iter().for_each(|text| println!("# error: {text}"));
        }
        if found != expected {
            let list = |texts: &[String]| texts.iter().map(|text| format!("    {text}\n")).collect::<String>();
            let expected: Vec<_> = expected.into_iter().map(String::from).collect();
            wrong += &format!("{}\n  expected\n{}  found\n{}", path.display(), list(&expected), list(&found));
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

/// A kind of violation that no file shows has never been seen to be found.
#[test]
fn each_kind_of_violation_has_a_file() {
    let source = include_str!("../host/plan/verify/violation.rs");
    let (_, after) = source.split_once("pub enum ViolationKind {\n").expect("the enum is there");
    let (body, _) = after.split_once("\n}\n").expect("the enum ends");
    let name = |text: &str| -> String { text.chars().take_while(char::is_ascii_alphanumeric).collect() };
    // Variants are indented by four spaces and begin with a capital letter.
    let variants = body.lines().filter_map(|line| line.strip_prefix("    "));
    let kinds: BTreeSet<_> =
        variants.filter(|line| line.starts_with(|c: char| c.is_ascii_uppercase())).map(name).collect();
    assert!(kinds.len() > 40, "{kinds:?}");

    let mut shown: BTreeSet<_> = plan_files()
        .iter()
        .flat_map(|path| violations_of(path))
        .map(|violation| name(&format!("{:?}", violation.kind)))
        .collect();
    // A list so long is shown in `verify_plans.rs`.
    shown.insert("More".to_owned());
    let missing: Vec<_> = kinds.difference(&shown).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
