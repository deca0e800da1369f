//! Parquet as others write it: bytes for texts, dates that there are not, types without a value in JSON.

use parquet::data_type::{ByteArray, ByteArrayType, FixedLenByteArray, FixedLenByteArrayType, Int32Type, Int64Type};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use prl_data::{DataError, Row, rows};
use serde_json::json;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

/// Values of a column, all of them there; or its numbers of levels for two fields of an optional struct, whose second is null
/// in the first row.
enum Column {
    Texts(Vec<&'static [u8]>),
    Days(Vec<i32>),
    Micros(Vec<i64>),
    Spans(Vec<[u8; 12]>),
    /// Definition levels, and as many texts as there are levels of 2.
    Optional(Vec<i16>, Vec<&'static [u8]>),
}

fn write(path: &Path, schema: &str, columns: Vec<Column>) {
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let mut writer = SerializedFileWriter::new(File::create(path).unwrap(), schema, Arc::default()).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let texts = |texts: Vec<&'static [u8]>| texts.into_iter().map(ByteArray::from).collect::<Vec<_>>();
    for column in columns {
        let mut to = group.next_column().unwrap().unwrap();
        match column {
            Column::Texts(values) => to.typed::<ByteArrayType>().write_batch(&texts(values), None, None).unwrap(),
            Column::Days(values) => to.typed::<Int32Type>().write_batch(&values, None, None).unwrap(),
            Column::Micros(values) => to.typed::<Int64Type>().write_batch(&values, None, None).unwrap(),
            Column::Spans(values) => {
                let values: Vec<FixedLenByteArray> =
                    values.iter().map(|bytes| ByteArray::from(bytes.to_vec()).into()).collect();
                to.typed::<FixedLenByteArrayType>().write_batch(&values, None, None).unwrap()
            }
            Column::Optional(levels, values) => {
                to.typed::<ByteArrayType>().write_batch(&texts(values), Some(&levels), None).unwrap()
            }
        };
        to.close().unwrap();
    }
    group.close().unwrap();
    writer.close().unwrap();
}

fn read(path: &Path) -> Result<Vec<Row>, DataError> {
    rows(vec![path.to_path_buf()], &["prompt", "completion", "args", "day", "time", "span"])?.collect()
}

#[test]
fn bytes_are_text_or_a_bad_row() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.parquet");
    let schema = "message m { required binary prompt; required binary completion (UTF8); }";
    let (prompts, completions): (Vec<&[u8]>, Vec<&[u8]>) = (vec![b"one", b"\xff", "zwölf".as_bytes()], vec![b"a"; 3]);
    write(&path, schema, vec![Column::Texts(prompts), Column::Texts(completions)]);
    let found = read(&path).unwrap();
    assert_eq!(found[0].value, Ok(json!({"prompt": "one", "completion": "a"})));
    assert_eq!(found[1].value, Err("column `prompt`: bytes that are no text in UTF-8".into()));
    assert!(found[1].place.ends_with("a.parquet: row 2"));
    assert_eq!(found[2].value, Ok(json!({"prompt": "zwölf", "completion": "a"})));
    let schema = "message m { required binary prompt (UTF8); }";
    write(&path, schema, vec![Column::Texts(vec![b"one", b"\xff"])]);
    assert!(read(&path).unwrap_err().to_string().ends_with("row 2 has a text that is no UTF-8"));
}

#[test]
fn only_what_is_asked_for_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.parquet");
    let texts = || Column::Texts(vec![b"one", b"two"]);
    let schema = "message m { required binary prompt (UTF8); required int32 made (DATE); \
                  required fixed_len_byte_array(12) took (INTERVAL); }";
    let beyond = || vec![0, i32::MAX];
    write(&path, schema, vec![texts(), Column::Days(beyond()), Column::Spans(vec![[1; 12]; 2])]);
    let values: Vec<_> = read(&path).unwrap().into_iter().map(|row| row.value).collect();
    assert_eq!(values, [Ok(json!({"prompt": "one"})), Ok(json!({"prompt": "two"}))]);

    let schema = "message m { required int32 day (DATE); required int64 time (TIMESTAMP_MICROS); }";
    write(&path, schema, vec![Column::Days(beyond()), Column::Micros(vec![0, 0])]);
    let found = read(&path).unwrap();
    assert_eq!(found[0].value.as_ref().unwrap()["day"], "1970-01-01");
    assert_eq!(found[1].value, Err("column `day`: a date that is not in the years 0 to 9999".into()));
    write(&path, schema, vec![Column::Days(vec![0, -719_528]), Column::Micros(vec![i64::MAX, i64::MIN])]);
    assert!(read(&path).unwrap().iter().all(|row| row.value.as_ref().unwrap_err().starts_with("column `time`")));

    write(&path, "message m { required binary text (UTF8); required binary other; }", vec![texts(), texts()]);
    let told = read(&path).unwrap_err().to_string();
    assert!(told.contains("it has the columns text, other, and none of prompt, completion"), "{told}");
    let schema = "message m { required fixed_len_byte_array(12) span (INTERVAL); }";
    write(&path, schema, vec![Column::Spans(vec![[1; 12]])]);
    let told = read(&path).unwrap_err().to_string();
    assert!(told.contains("its column `span` has values of the type FIXED_LEN_BYTE_ARRAY (INTERVAL)"), "{told}");
}

#[test]
fn what_a_table_has_filled_is_absent() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.parquet");
    let schema = "message m { optional group args { optional binary x (UTF8); optional binary y (UTF8); } }";
    let column = |levels: [i16; 3], values: Vec<&'static [u8]>| Column::Optional(levels.to_vec(), values);
    write(&path, schema, vec![column([2, 2, 0], vec![b"1", b"2"]), column([1, 2, 0], vec![b"3"])]);
    let values: Vec<_> = read(&path).unwrap().into_iter().map(|row| row.value.unwrap()).collect();
    assert_eq!(values, [json!({"args": {"x": "1"}}), json!({"args": {"x": "2", "y": "3"}}), json!({})]);
}
