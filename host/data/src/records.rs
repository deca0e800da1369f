//! Records of Parquet files. Owns which of their columns are read and what a value of theirs is in JSON; must not know what a row
//! means.

use crate::rows::{Row, Rows};
use crate::{DataError, wrong};
use parquet::basic::{ConvertedType, Type as Physical};
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::{Field, Row as Record};
use parquet::schema::types::Type;
use serde_json::{Map, Value};
use std::fs::File;
use std::ops::RangeInclusive;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

/// Days from 1970 of the years 0 to 9999; dates beyond cannot be written.
const DAYS: RangeInclusive<i64> = -719_528..=2_932_896;
const MILLIS_A_DAY: i64 = 24 * 60 * 60 * 1000;

/// The records of a file, of which only `columns` are read: nobody misses what is wrong with others.
///
/// # Errors
/// A file that is no Parquet, has none of the columns, or one of a type that cannot be read.
pub(crate) fn records(path: PathBuf, file: File, columns: &[&str]) -> Result<Rows, DataError> {
    let reader = SerializedFileReader::new(file).map_err(|e| broken(&path, &e))?;
    let schema = reader.metadata().file_metadata().schema();
    let (name, has) = (schema.name().to_owned(), schema.get_fields());
    let kept: Vec<_> = has.iter().filter(|column| columns.contains(&column.name())).cloned().collect();
    if kept.is_empty() {
        let has = has.iter().map(|column| column.name()).collect::<Vec<_>>().join(", ");
        return Err(wrong(&path, format!("it has the columns {has}, and none of {}", columns.join(", "))));
    }
    if let Some((column, kind)) = kept.iter().find_map(|column| Some((column.name(), unreadable(column)?))) {
        return Err(wrong(&path, format!("its column `{column}` has values of the type {kind}, which cannot be read")));
    }
    let projection = Type::group_type_builder(&name).with_fields(kept).build();
    let read = projection.and_then(|projection| reader.into_iter().project(Some(projection)));
    let mut records = Some(read.map_err(|e| broken(&path, &e))?.enumerate());
    Ok(Box::new(std::iter::from_fn(move || {
        let rest = records.as_mut()?;
        // The reader panics at some files that are damaged.
        let error = match catch_unwind(AssertUnwindSafe(|| rest.next())) {
            Ok(None) => return None,
            Ok(Some((at, Ok(record)))) => {
                return Some(Ok(Row { place: format!("{}: row {}", path.display(), at + 1), value: row(&record) }));
            }
            Ok(Some((at, Err(error)))) => match is_no_text(&error) {
                true => wrong(&path, format!("row {} has a text that is no UTF-8", at + 1)),
                false => broken(&path, &error),
            },
            Err(_) => wrong(&path, "it is no whole Parquet file: its pages do not fit together"),
        };
        records = None;
        Some(Err(error))
    })))
}

fn broken(path: &Path, error: &ParquetError) -> DataError {
    wrong(path, format!("it is no whole Parquet file: {error}"))
}

/// Such an error has all the bytes in its message.
fn is_no_text(error: &ParquetError) -> bool {
    matches!(error, ParquetError::General(text) if text.starts_with("Error reading BYTE_ARRAY as String"))
}

/// The first type below a column that the reader has no value for.
fn unreadable(column: &Type) -> Option<String> {
    use ConvertedType as C;
    if column.is_group() {
        return column.get_fields().iter().find_map(|field| unreadable(field));
    }
    let (physical, meaning) = (column.get_physical_type(), column.get_basic_info().converted_type());
    let known = match physical {
        Physical::INT32 => !matches!(meaning, C::INT_64 | C::UINT_64 | C::INTERVAL),
        Physical::FIXED_LEN_BYTE_ARRAY => matches!(meaning, C::NONE | C::DECIMAL),
        _ => true,
    };
    (!known).then(|| format!("{physical} ({meaning})"))
}

/// A record as an object without what is null; or which of its columns has what it cannot have.
fn row(record: &Record) -> Result<Value, String> {
    let columns = record.get_column_iter().filter(|(_, field)| !matches!(field, Field::Null));
    let columns =
        columns.map(|(name, field)| Ok((name.clone(), value(field).map_err(|e| format!("column `{name}`: {e}"))?)));
    columns.collect::<Result<Map<_, _>, String>>().map(Value::Object)
}

/// A value. Structs lack the fields that are null: tables fill with null what another row has, so that nothing tells the two
/// apart. In lists and maps null stays.
fn value(field: &Field) -> Result<Value, String> {
    let day = |days: i64| match DAYS.contains(&days) {
        true => Ok(field.to_json_value()),
        false => Err("a date that is not in the years 0 to 9999".to_owned()),
    };
    match field {
        Field::Group(record) => {
            let fields = record.get_column_iter().filter(|(_, field)| !matches!(field, Field::Null));
            fields.map(|(name, field)| Ok((name.clone(), value(field)?))).collect::<Result<_, _>>().map(Value::Object)
        }
        Field::ListInternal(list) => list.elements().iter().map(value).collect::<Result<_, _>>().map(Value::Array),
        Field::MapInternal(map) => {
            let entry = |(key, of_key): &(Field, Field)| {
                let key = value(key)?;
                Ok((key.as_str().map_or_else(|| key.to_string(), str::to_owned), value(of_key)?))
            };
            map.entries().iter().map(entry).collect::<Result<_, String>>().map(Value::Object)
        }
        // A text whose writer did not say that it is one.
        Field::Bytes(bytes) => match std::str::from_utf8(bytes.data()) {
            Ok(text) => Ok(Value::String(text.to_owned())),
            Err(_) => Err("bytes that are no text in UTF-8".into()),
        },
        Field::Date(days) => day(i64::from(*days)),
        Field::TimestampMillis(millis) => day(millis.div_euclid(MILLIS_A_DAY)),
        Field::TimestampMicros(micros) => day(micros.div_euclid(1000 * MILLIS_A_DAY)),
        plain => Ok(plain.to_json_value()),
    }
}
