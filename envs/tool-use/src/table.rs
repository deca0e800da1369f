//! Tables of made-up records. Owns what they are about, how their values are drawn and how they are looked up; must not
//! know what is asked.

use prl_env::Rng;
use serde_json::{Value, json};

/// Bytes of a model's own words that a reply repeats.
const ECHO: usize = 40;

/// What a table is about.
pub struct Domain {
    pub name: &'static str,
    /// As the prompt has it.
    pub about: &'static str,
    /// The field that groups records comes first.
    pub fields: [(&'static str, &'static str); 4],
    /// What the first field may hold.
    groups: [&'static str; 6],
}

/// Shop, towns, staff: `question` knows them by their place.
pub const DOMAINS: [Domain; 3] = [
    Domain {
        name: "shop",
        about: "the products of a shop",
        fields: [
            ("category", "a word"),
            ("price", "in dollars"),
            ("stock", "pieces in the shop"),
            ("weight", "in grams"),
        ],
        groups: ["kitchen", "garden", "office", "sports", "music", "travel"],
    },
    Domain {
        name: "towns",
        about: "the towns of an island",
        fields: [
            ("region", "a word"),
            ("population", "people"),
            ("area", "in square kilometres"),
            ("elevation", "in metres"),
        ],
        groups: ["north", "south", "east", "west", "coast", "highlands"],
    },
    Domain {
        name: "staff",
        about: "the people who work in a company",
        fields: [
            ("department", "a word"),
            ("salary", "in dollars a month"),
            ("years", "of service"),
            ("hours", "a week"),
        ],
        groups: ["sales", "research", "design", "support", "finance", "legal"],
    },
];

/// How a name begins, by split. None begins as another does, so a name tells which split it is of.
const TRAIN: [&str; 32] = [
    "Bel", "Cor", "Dan", "Fer", "Gal", "Har", "Jor", "Kel", "Lan", "Mar", "Nor", "Pel", "Quin", "Ral", "Sel", "Tor",
    "Val", "Wen", "Yar", "Zel", "Bram", "Cal", "Dur", "Fal", "Gor", "Hol", "Kar", "Lor", "Mel", "Nal", "Por", "Ris",
];
const EVAL: [&str; 10] = ["Ash", "Elm", "Ith", "Olv", "Umb", "Eld", "Orn", "Ulm", "Isk", "Arn"];
const MIDDLE: [&str; 14] = ["a", "e", "i", "o", "u", "ade", "ime", "ona", "ure", "ela", "iva", "osa", "ani", "ume"];
const END: [&str; 12] = ["dor", "lin", "mora", "nis", "rek", "sta", "tan", "vik", "wick", "zar", "bury", "ko"];

/// Records by name; every value is kept as it is shown.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    fields: Vec<String>,
    /// The name, then a value for each field.
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table of so many records.
    pub fn draw(rng: &mut Rng, domain: &Domain, rows: usize, eval: bool) -> Self {
        let mut groups = domain.groups;
        rng.shuffle(&mut groups);
        // Three to four records a group, two in a table of four.
        let count = (rows / 3).clamp(2, groups.len());
        let mut names: Vec<String> = Vec::new();
        while names.len() < rows {
            let name = name(rng, eval);
            if !names.contains(&name) {
                names.push(name);
            }
        }
        let record = |(at, name): (usize, String)| {
            let mut record = vec![name, groups[at % count].to_owned()];
            record.extend(values(rng, domain.name));
            record
        };
        let mut rows: Vec<Vec<String>> = names.into_iter().enumerate().map(record).collect();
        rng.shuffle(&mut rows);
        Table { fields: domain.fields.iter().map(|(name, _)| (*name).to_owned()).collect(), rows }
    }

    /// As a part of a task's payload.
    pub fn to_json(&self) -> Value {
        json!({ "fields": self.fields, "rows": self.rows })
    }

    /// From a task's payload; `None` when that is no table.
    pub fn from_json(json: &Value) -> Option<Self> {
        let list = |json: &Value| -> Option<Vec<String>> {
            json.as_array()?.iter().map(|text| text.as_str().map(str::to_owned)).collect()
        };
        let fields = list(&json["fields"])?;
        let rows: Option<Vec<Vec<String>>> = json["rows"].as_array()?.iter().map(list).collect();
        rows.filter(|rows| rows.iter().all(|row| row.len() == fields.len() + 1)).map(|rows| Table { fields, rows })
    }

    /// The names of all records.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.rows.iter().filter_map(|row| row.first()).map(String::as_str)
    }

    /// A value as it is shown.
    pub fn value(&self, name: &str, field: &str) -> Option<&str> {
        let at = self.fields.iter().position(|known| known == field)?;
        self.row(name)?.get(at + 1).map(String::as_str)
    }

    fn row(&self, name: &str) -> Option<&Vec<String>> {
        self.rows.iter().find(|row| row.first().is_some_and(|known| known.eq_ignore_ascii_case(name.trim())))
    }

    fn field(&self, field: &str) -> Result<usize, String> {
        let at = self.fields.iter().position(|known| known.eq_ignore_ascii_case(field.trim()));
        at.ok_or_else(|| format!("there is no field `{}`; there are {}", echo(field), self.fields.join(", ")))
    }

    /// What the tool `lookup` answers.
    ///
    /// # Errors
    /// What to tell the model about a record or field that is not there.
    pub fn lookup(&self, name: &str, field: Option<&str>) -> Result<String, String> {
        let row = self.row(name).ok_or_else(|| format!("there is no record `{}`", echo(name)))?;
        match field {
            Some(field) => Ok(row[self.field(field)? + 1].clone()),
            None => {
                let pairs = self.fields.iter().zip(&row[1..]).map(|(field, value)| format!("{field}: {value}"));
                Ok(pairs.collect::<Vec<_>>().join(", "))
            }
        }
    }

    /// What the tool `find` answers.
    ///
    /// # Errors
    /// What to tell the model about a field that is not there, or a value that no record has.
    pub fn find(&self, field: &str, value: &str) -> Result<String, String> {
        let at = self.field(field)?;
        let found: Vec<&str> = self
            .rows
            .iter()
            .filter(|row| row[at + 1].eq_ignore_ascii_case(value.trim()))
            .filter_map(|row| row.first().map(String::as_str))
            .collect();
        match found.is_empty() {
            true => Err(format!("no record has `{}` as its {}", echo(value), self.fields[at])),
            false => Ok(found.join(", ")),
        }
    }
}

/// The beginning of a model's own words.
fn echo(text: &str) -> String {
    if text.len() <= ECHO {
        return text.to_owned();
    }
    let end = (0..=ECHO).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    format!("{}...", &text[..end])
}

fn name(rng: &mut Rng, eval: bool) -> String {
    let first = if eval { EVAL[rng.below(EVAL.len())] } else { TRAIN[rng.below(TRAIN.len())] };
    format!("{first}{}{}", MIDDLE[rng.below(MIDDLE.len())], END[rng.below(END.len())])
}

/// The three values after the group.
fn values(rng: &mut Rng, domain: &str) -> [String; 3] {
    let mut between = |least: usize, most: usize| least + rng.below(most - least + 1);
    match domain {
        "shop" => {
            let cents = between(30, 1200) * 5;
            [
                format!("{}.{:02}", cents / 100, cents % 100),
                between(3, 90).to_string(),
                (between(4, 300) * 10).to_string(),
            ]
        }
        "towns" => {
            // People per square kilometre come to a whole number.
            let (area, density) = (between(12, 180), between(40, 900));
            [(area * density).to_string(), area.to_string(), between(2, 1400).to_string()]
        }
        _ => [(between(36, 140) * 50).to_string(), between(1, 30).to_string(), between(12, 42).to_string()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let row = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
        Table {
            fields: vec!["region".into(), "area".into()],
            rows: vec![
                row(["Belador", "north", "12"]),
                row(["Corinis", "south", "40"]),
                row(["Danokar", "north", "7"]),
            ],
        }
    }

    #[test]
    fn records_are_found_by_name_and_value() {
        let table = table();
        assert_eq!(table.lookup(" belador ", Some("Area")), Ok("12".into()));
        assert_eq!(table.lookup("Corinis", None), Ok("region: south, area: 40".into()));
        assert_eq!(table.lookup("Corin", None), Err("there is no record `Corin`".into()));
        assert_eq!(table.lookup("Corinis", Some("x")), Err("there is no field `x`; there are region, area".into()));
        assert_eq!(table.find("region", "North"), Ok("Belador, Danokar".into()));
        assert_eq!(table.find("area", "8"), Err("no record has `8` as its area".into()));
        let long = table.lookup(&"é".repeat(500_000), None).unwrap_err();
        assert_eq!(long, format!("there is no record `{}...`", "é".repeat(20)));
    }

    #[test]
    fn tables_go_through_json() {
        let drawn = Table::draw(&mut Rng::new(1), &DOMAINS[0], 20, false);
        for table in [table(), drawn] {
            assert_eq!(Table::from_json(&table.to_json()), Some(table));
        }
        for json in [json!(null), json!({ "fields": ["a"], "rows": [["x"]] }), json!({ "fields": [1], "rows": [] })] {
            assert_eq!(Table::from_json(&json), None);
        }
    }

    #[test]
    fn names_of_the_splits_never_meet() {
        for (at, first) in EVAL.iter().enumerate() {
            assert!(EVAL[at + 1..].iter().all(|other| other != first));
            assert!(TRAIN.iter().all(|other| !other.starts_with(first) && !first.starts_with(other)));
        }
    }
}
