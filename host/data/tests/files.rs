//! Rows of every format, and files that are none.

use prl_data::{Row, Skipped, Wanted, find, rows};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

fn all(path: &Path) -> Vec<Row> {
    rows(find(path, &Wanted::default()).unwrap()).unwrap().collect::<Result<_, _>>().unwrap()
}

fn committed(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/rows").join(name)
}

/// Without what is null, at any depth.
fn bare(value: Value) -> Value {
    match value {
        Value::Object(map) => map.into_iter().filter(|(_, v)| !v.is_null()).map(|(k, v)| (k, bare(v))).collect(),
        Value::Array(items) => items.into_iter().map(bare).collect(),
        other => other,
    }
}

#[test]
fn parquet_has_the_rows_of_the_lines_and_nulls_where_they_have_nothing() {
    let (lines, records) = (all(&committed("chat.jsonl")), all(&committed("chat.parquet")));
    assert_eq!((lines.len(), records.len()), (3, 3));
    assert!(lines[1].place.ends_with("chat.jsonl:2") && records[1].place.ends_with("chat.parquet: row 2"));
    let filled = records[0].value.clone().unwrap();
    assert!(filled["messages"][0]["tool_calls"].is_null() && filled["messages"][0].get("tool_calls").is_some());
    for (line, record) in lines.into_iter().zip(records) {
        assert_eq!(bare(record.value.unwrap()), line.value.unwrap());
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
