//! `tutti ptx` from end to end, in a build with PTX and in one without.

mod common;

use common::{names, run, run_line};
use serde_json::Value;
use std::ffi::OsStr;

#[test]
fn the_images_are_written_and_listed_or_the_command_says_why_there_are_none() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("new/ptx");
    let write = || run([OsStr::new("ptx"), OsStr::new("--out"), path.as_os_str()]);
    let images = match tutti::ptx::images() {
        Err(reason) => {
            let reason = reason.to_string();
            write().failed(1, &[&reason]);
            run_line("ptx --list").failed(1, &[&reason]);
            run_line("ptx --list --json").failed(1, &[&reason]);
            return assert!(!path.exists());
        }
        Ok(images) => images,
    };
    let written = write().good();
    let mut expected: Vec<String> = images.iter().map(|image| image.file_name()).collect();
    expected.sort();
    assert_eq!(names(&path), expected);
    for image in images {
        let file = path.join(image.file_name());
        assert_eq!(std::fs::read_to_string(&file).unwrap(), image.text());
        assert!(written.stdout.contains(&format!("{}\n", file.display())));
    }

    let list = run_line("ptx --list").good().stdout;
    let json: Value = serde_json::from_str(&run_line("ptx --list --json").good().stdout).unwrap();
    for (image, summary) in images.iter().zip(json.as_array().unwrap()) {
        assert_eq!((&summary["file"], &summary["dtype"]), (&image.file_name().into(), &image.dtype().into()));
        assert!(!image.entries().is_empty());
        for (entry, listed) in image.entries().iter().zip(summary["entries"].as_array().unwrap()) {
            assert!(image.text().contains(&format!(".entry {}(", entry.name())), "{entry}");
            assert!(list.contains(&format!("\n  {entry}: {} of ", entry.reduction.name)), "{entry}");
            assert_eq!(listed["name"], entry.name());
            assert_eq!(listed["parameters"].as_array().unwrap().len(), tutti::ptx::PARAMETERS.len());
        }
    }
    // Every reduction that every element type offers.
    let listed: Vec<&Value> =
        json.as_array().unwrap().iter().flat_map(|image| image["entries"].as_array().unwrap()).collect();
    for dtype in tutti::DType::ALL {
        for reduction in dtype.reductions() {
            let is_it = |entry: &&&Value| {
                entry["reduction"] == reduction.name()
                    && entry["dtypes"].as_array().unwrap().contains(&dtype.name().into())
            };
            assert!(listed.iter().any(|entry| is_it(&entry)), "{reduction} of {dtype}");
        }
    }
}

#[test]
fn a_directory_that_cannot_be_made_is_an_error() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let outcome = run([OsStr::new("ptx"), OsStr::new("--out"), file.path().as_os_str()]);
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
}

#[test]
fn one_thing_must_be_asked_for() {
    run_line("ptx").failed(2, &["--list"]);
    run_line("ptx --list --out x").failed(2, &["cannot be used with"]);
}
