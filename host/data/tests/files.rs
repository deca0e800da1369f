//! Rows of every format, and files that are none.

use prl_data::{DataError, Row, Skipped, Wanted, find};
use serde_json::json;
use std::path::{Path, PathBuf};

fn rows(files: Vec<PathBuf>) -> Result<impl Iterator<Item = Result<Row, DataError>>, DataError> {
    prl_data::rows(files, &["messages", "tools"])
}

fn all(path: &Path) -> Vec<Row> {
    rows(find(path, &Wanted::default()).unwrap()).unwrap().collect::<Result<_, _>>().unwrap()
}

fn committed(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/rows").join(name)
}

#[test]
fn parquet_has_the_rows_of_the_lines() {
    let (lines, records) = (all(&committed("chat.jsonl")), all(&committed("chat.parquet")));
    assert_eq!((lines.len(), records.len()), (3, 3));
    assert!(lines[1].place.ends_with("chat.jsonl:2") && records[1].place.ends_with("chat.parquet: row 2"));
    for (line, record) in lines.into_iter().zip(records) {
        assert_eq!(record.value.unwrap(), line.value.unwrap());
    }
}

#[test]
fn a_folder_is_read_in_the_order_of_its_names() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    write("b.jsonl", "{\"n\": 1}\n\n{\"n\": 2}\n[");
    write("a.json", "[{\"n\": 0}]");
    write("notes.txt", "none");
    std::fs::copy(committed("chat.parquet"), dir.path().join("c.parquet")).unwrap();
    let found = all(dir.path());
    let numbers: Vec<_> = found.iter().take(3).map(|row| row.value.clone().unwrap()["n"].clone()).collect();
    assert_eq!(numbers, [json!(0), json!(1), json!(2)]);
    assert!(found[3].place.ends_with("b.jsonl:4") && found[3].value.is_err(), "{:?}", found[3]);
    assert_eq!(found.len(), 7);
    // Another ending is JSON lines.
    write("rows.txt", "{\"n\": 3}");
    assert_eq!(all(&dir.path().join("rows.txt")).len(), 1);
}

#[test]
fn what_is_no_file_of_rows_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let told = |name: &str, bytes: &[u8]| {
        std::fs::write(dir.path().join(name), bytes).unwrap();
        let opened = rows(vec![dir.path().join(name)]).map(|mut rows| rows.find_map(Result::err));
        opened.unwrap_or_else(Some).map(|error| error.to_string()).unwrap_or_default()
    };
    let empty = find(dir.path(), &Wanted::default()).unwrap_err().to_string();
    assert!(empty.contains("no file that ends in .jsonl, .ndjson, .json, .parquet"), "{empty}");
    assert!(
        told("a.json", b"[{\"n\": 0}\n{\"n\": 1}]").contains("it is no list in JSON: expected `,` or `]` at line 2")
    );
    assert!(told("a.json", b" [1, 2").contains("it is no list in JSON: EOF"));
    assert!(told("a.json", b"[1] 2").contains("it is no list in JSON: trailing characters"));
    assert!(told("a.parquet", b"PAR1 and nothing").contains("a.parquet as training data: it is no whole Parquet file"));
    let whole = std::fs::read(committed("chat.parquet")).unwrap();
    for cut in [0, 1, 4, 40, whole.len() / 2, whole.len() - 1] {
        assert!(told("cut.parquet", &whole[..cut]).contains("no whole Parquet file"), "cut at {cut}");
    }
    assert!(rows(vec!["nowhere.jsonl".into()]).err().unwrap().to_string().contains("nowhere.jsonl"));
    let split = Wanted { split: "test".into(), ..Wanted::default() };
    let told = find(&committed("chat.jsonl"), &split).unwrap_err().to_string();
    assert!(told.contains("a file has neither subsets nor splits"), "{told}");
}

#[test]
fn a_list_is_read_as_it_is_needed_and_json_may_be_lines() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.json");
    let numbers = |text: &str| {
        std::fs::write(&path, text).unwrap();
        all(&path).into_iter().map(|row| row.value.unwrap()["n"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(numbers("\n {\"n\": 0}\n{\"n\": 1}\n"), [0, 1]);
    let many = (0..1000).map(|n| format!("{{\"n\": {n}}}")).collect::<Vec<_>>().join(",\n");
    assert_eq!(numbers(&format!("\n\t[{many}]\n")), (0..1000).collect::<Vec<_>>());
    assert_eq!(numbers(" [ ] "), [0; 0]);
    assert_eq!(numbers(""), [0; 0]);
    // What comes before the mistake is there; nobody has to take the rest.
    std::fs::write(&path, format!("[{many}, oops]")).unwrap();
    let mut found = rows(vec![path.clone()]).unwrap();
    assert!(found.by_ref().take(1000).all(|row| row.is_ok()));
    assert!(found.next().unwrap().is_err() && found.next().is_none());
    assert!(rows(vec![path]).unwrap().next().unwrap().is_ok());
}

#[test]
fn too_many_bad_rows_are_no_data() {
    let skipped = |count: u64| {
        let mut skipped = Skipped::default();
        (0..count).for_each(|n| skipped.note(format!("f:{}", n + 3), "odd".into()));
        skipped
    };
    assert!(skipped(1).check_share(Path::new("f"), 9).is_ok());
    let told = skipped(1).check_share(Path::new("f"), 8).unwrap_err().to_string();
    assert!(told.contains("1 of 9 rows are unusable; the first is f:3: odd"), "{told}");
    // Before the end it takes more rows, and twice the share.
    assert!(skipped(999).check_so_far(Path::new("f"), 0).is_ok());
    assert!(skipped(200).check_so_far(Path::new("f"), 800).is_ok());
    let told = skipped(201).check_so_far(Path::new("f"), 799).unwrap_err().to_string();
    assert!(told.contains("201 of 1000 rows are unusable; the first is f:3: odd"), "{told}");
    assert!(skipped(0).check_share(Path::new("f"), 0).unwrap_err().to_string().contains("there are no rows"));
    assert_eq!((skipped(99).count, skipped(99).first.len()), (99, 10));
}

/// Files without an end are read as far as it takes to see that they hold no rows.
#[test]
fn what_never_ends_is_no_row() {
    let dir = tempfile::tempdir().unwrap();
    let told = |name: &str, begin: &[u8]| {
        let path = dir.path().join(name);
        std::fs::write(&path, begin).unwrap();
        // As long as no machine's memory; a hole takes no room.
        std::fs::File::options().write(true).open(&path).unwrap().set_len(1 << 42).unwrap();
        rows(vec![path]).unwrap().find_map(Result::err).unwrap().to_string()
    };
    let long = "more than 32 MiB: is it a file of another kind?";
    assert!(told("a.jsonl", b"{\"n\": 0}\n\n").ends_with(&format!("a.jsonl as training data: line 3 has {long}")));
    assert!(told("a.bin", b"").contains("line 1 has more than"));
    assert!(told("a.json", b"{").contains("line 1 has more than"));
    // Of a list no value may be so long; all together may be.
    let path = dir.path().join("b.json");
    let list = |values: usize, len: usize| {
        let value = format!("\"{}\"", "a".repeat(len));
        std::fs::write(&path, format!("[{}]", vec![value; values].join(","))).unwrap();
        rows(vec![path.clone()]).unwrap().collect::<Result<Vec<_>, _>>()
    };
    assert_eq!(list(5, 8 << 20).unwrap().len(), 5);
    let told = list(1, 33 << 20).unwrap_err().to_string();
    assert!(told.contains(&format!("it is no list in JSON: a value has {long}")), "{told}");
}

#[test]
fn a_mark_before_the_text_is_none_of_it() {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in
        [("a.jsonl", "\u{feff}{\"n\": 0}\n"), ("a.json", "\u{feff} [{\"n\": 0}]"), ("b.json", "\u{feff}{\"n\": 0}")]
    {
        std::fs::write(dir.path().join(name), text).unwrap();
        let found = all(&dir.path().join(name));
        assert_eq!((found.len(), found[0].value.clone()), (1, Ok(json!({"n": 0}))), "{name}");
    }
}

#[test]
fn other_kinds_of_files_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let told = |name: &str, bytes: &[u8]| {
        std::fs::write(dir.path().join(name), bytes).unwrap();
        let opened = rows(vec![dir.path().join(name)]).map(|mut rows| rows.find_map(Result::err));
        opened.unwrap_or_else(Some).map(|error| error.to_string()).unwrap_or_default()
    };
    assert!(told("a.jsonl.gz", b"\x1f\x8b").ends_with("it is packed: unpack it first"));
    assert!(told("a.jsonl", b"\x1f\x8b\x08 and so on").ends_with("it is packed: unpack it first"));
    assert!(told("a.csv", b"prompt,completion\n").contains("tables of text are not read"));
    assert!(told("data-00000-of-00001.arrow", b"\xff\xff\xff\xff").contains("write it as Parquet"));
    assert!(told("b.jsonl", &std::fs::read(committed("chat.parquet")).unwrap()).contains("name it `.parquet`"));
    assert!(told("c.jsonl", b"\xff\xfe{\0").contains("UTF-16"));
    for name in ["d.json", "d.jsonl"] {
        let told = told(name, b"\n{\n  \"prompt\": \"a\"\n}\n");
        assert!(told.contains("it is one JSON value over several lines: write a row a line"), "{told}");
    }
    let told = rows(vec!["/dev/zero".into()]).err().unwrap().to_string();
    assert!(told.contains("it is a pipe, a device or a folder"), "{told}");
}

#[test]
fn a_pattern_names_several_files() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["b.jsonl", "a.jsonl", "c.txt", "[x].jsonl"] {
        std::fs::write(dir.path().join(name), "{}\n").unwrap();
    }
    let found = |name: &str| find(&dir.path().join(name), &Wanted::default());
    let names = |name: &str| {
        let files = found(name).unwrap().into_iter();
        files.map(|file| file.file_name().unwrap().to_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names("?.jsonl"), ["a.jsonl", "b.jsonl"]);
    // What is there is no pattern.
    assert_eq!(names("[x].jsonl"), ["[x].jsonl"]);
    let told = found("*.parquet").unwrap_err().to_string();
    assert!(told.contains("as a pattern it matches none"), "{told}");
}
