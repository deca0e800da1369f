//! Questions about a table, with their answers and a plan of tool calls that leads there. Owns what is asked at each
//! level; must not know prompts or rewards.

use crate::table::{DOMAINS, Table};
use prl_env::Rng;
use prl_numbers::{Dialect, Rational, evaluate};
use serde_json::{Value, json};

/// A question.
pub struct Question {
    pub text: String,
    /// A number or a name, as it is to be given.
    pub answer: String,
    /// Which of the two.
    pub number: bool,
    /// Tools and their arguments; for a number, the last one's result is the answer.
    pub plan: Vec<(&'static str, Value)>,
}

/// What is being asked, in the making.
struct Draft<'a> {
    rng: &'a mut Rng,
    table: &'a Table,
    plan: Vec<(&'static str, Value)>,
}

/// A question about a table of the domain at this place, of level 1 to 3; `None` when the table allows none.
pub fn draw(rng: &mut Rng, domain: usize, table: &Table, level: usize) -> Option<Question> {
    let draft = Draft { rng, table, plan: Vec::new() };
    match (domain, level) {
        (0, 1) => draft.shop_one(),
        (0, 2) => draft.shop_two(),
        (0, _) => draft.shop_group(),
        (1, 1) => draft.towns_one(),
        (1, 2) => draft.towns_two(),
        (1, _) => draft.towns_group(),
        (_, 1) => draft.staff_one(),
        (_, 2) => draft.staff_two(),
        _ => draft.staff_group(),
    }
}

impl Draft<'_> {
    /// So many different names.
    fn names(&mut self, count: usize) -> Vec<String> {
        let mut names: Vec<String> = self.table.names().map(str::to_owned).collect();
        self.rng.shuffle(&mut names);
        names.truncate(count);
        names
    }

    fn between(&mut self, least: usize, most: usize) -> usize {
        least + self.rng.below(most - least + 1)
    }

    /// A value, and its look-up in the plan.
    fn value(&mut self, name: &str, field: &str) -> Option<String> {
        self.plan.push(("lookup", json!({ "name": name, "field": field })));
        self.table.value(name, field).map(str::to_owned)
    }

    /// The members of a group, and their search in the plan.
    fn group(&mut self, domain: usize) -> Option<(String, Vec<String>)> {
        let (field, _) = DOMAINS[domain].fields[0];
        let one = self.names(1).pop()?;
        let group = self.table.value(&one, field)?.to_owned();
        let of_group = |name: &&str| self.table.value(name, field) == Some(group.as_str());
        let members: Vec<String> = self.table.names().filter(of_group).map(str::to_owned).collect();
        self.plan.push(("find", json!({ "field": field, "value": group })));
        Some((group, members))
    }

    fn calculate(&mut self, expression: &str) -> Option<Rational> {
        self.plan.push(("calculator", json!({ "expression": expression })));
        evaluate(expression, Dialect::Calculator).ok().map(|found| found.value)
    }

    /// A question whose answer is what an expression comes to; it must be a decimal that ends soon.
    fn number(mut self, text: String, expression: &str) -> Option<Question> {
        let value = self.calculate(expression)?;
        let answer = value.decimal()?;
        Some(Question { text, answer, number: true, plan: self.plan })
    }

    /// A question for the member with the largest value of `a / b` (or of `a`), which no other may share.
    fn largest(mut self, text: String, members: &[String], a: &str, b: Option<&str>) -> Option<Question> {
        let mut best: Option<(f64, &String)> = None;
        let mut shared = false;
        for name in members {
            let mut expression = self.value(name, a)?;
            if let Some(b) = b {
                expression = format!("{expression} / {}", self.value(name, b)?);
                self.calculate(&expression)?;
            }
            let value = evaluate(&expression, Dialect::Calculator).ok()?.value.to_f64();
            match best {
                Some((largest, _)) if value < largest => {}
                Some((largest, _)) if value == largest => shared = true,
                _ => (best, shared) = (Some((value, name)), false),
            }
        }
        let answer = best.filter(|_| !shared)?.1.clone();
        Some(Question { text, answer, number: false, plan: self.plan })
    }

    /// The sum over the members of a group of one field, or of the product of two.
    fn sum(mut self, text: String, members: &[String], a: &str, b: Option<&str>) -> Option<Question> {
        let expression = self.terms(members, a, b)?;
        self.number(text, &expression)
    }

    fn terms(&mut self, members: &[String], a: &str, b: Option<&str>) -> Option<String> {
        let mut terms = Vec::new();
        for name in members {
            let mut term = self.value(name, a)?;
            if let Some(b) = b {
                term = format!("{term} * {}", self.value(name, b)?);
            }
            terms.push(term);
        }
        Some(terms.join(" + "))
    }

    fn shop_one(mut self) -> Option<Question> {
        let name = self.names(1).pop()?;
        let count = self.between(3, 19);
        if self.rng.below(2) == 0 {
            let price = self.value(&name, "price")?;
            return self
                .number(format!("How many dollars do {count} pieces of {name} cost?"), &format!("{count} * {price}"));
        }
        let weight = self.value(&name, "weight")?;
        let text = format!("How many kilograms do {count} pieces of {name} weigh?");
        self.number(text, &format!("{count} * {weight} / 1000"))
    }

    fn shop_two(mut self) -> Option<Question> {
        let [a, b] = self.names(2).try_into().ok()?;
        let (count, other) = (self.between(2, 12), self.between(2, 12));
        if self.rng.below(2) == 0 {
            let (price, other_price) = (self.value(&a, "price")?, self.value(&b, "price")?);
            let text = format!("How many dollars do {count} pieces of {a} and {other} pieces of {b} cost together?");
            return self.number(text, &format!("{count} * {price} + {other} * {other_price}"));
        }
        let (stock, other_stock) = (self.value(&a, "stock")?, self.value(&b, "stock")?);
        let (weight, other_weight) = (self.value(&a, "weight")?, self.value(&b, "weight")?);
        let text = format!("How many grams do all pieces of {a} and of {b} that are in the shop weigh together?");
        self.number(text, &format!("{stock} * {weight} + {other_stock} * {other_weight}"))
    }

    fn shop_group(mut self) -> Option<Question> {
        let (group, members) = self.group(0)?;
        match self.rng.below(3) {
            0 => {
                let text = format!(
                    "What is the whole stock of the category {group} worth in dollars (price times stock, over all its products)?"
                );
                self.sum(text, &members, "price", Some("stock"))
            }
            1 => {
                let text = format!("Which product of the category {group} has the highest price per gram?");
                self.largest(text, &members, "price", Some("weight"))
            }
            _ => {
                let text = format!("Of which product of the category {group} are there the most pieces in the shop?");
                self.largest(text, &members, "stock", None)
            }
        }
    }

    fn towns_one(mut self) -> Option<Question> {
        let name = self.names(1).pop()?;
        let population = self.value(&name, "population")?;
        if self.rng.below(2) == 0 {
            let (growth, years) = (self.between(20, 400), self.between(3, 15));
            let text = format!(
                "How many people will live in {name} after {years} years if {growth} more live there each year?"
            );
            return self.number(text, &format!("{population} + {growth} * {years}"));
        }
        let area = self.value(&name, "area")?;
        self.number(format!("How many people per square kilometre live in {name}?"), &format!("{population} / {area}"))
    }

    fn towns_two(mut self) -> Option<Question> {
        let [a, b, c] = self.names(3).try_into().ok()?;
        if self.rng.below(2) == 0 {
            let mut people = Vec::new();
            for name in [&a, &b, &c] {
                people.push(self.value(name, "population")?);
            }
            let text = format!("How many people live in {a}, {b} and {c} together?");
            return self.number(text, &people.join(" + "));
        }
        let mut ways = Vec::new();
        for name in [&a, &b] {
            ways.push((self.value(name, "population")?, self.value(name, "area")?));
        }
        let text = format!(
            "How many more people per square kilometre live in {a} than in {b}? (Below zero if there are fewer.)"
        );
        self.number(text, &format!("{} / {} - {} / {}", ways[0].0, ways[0].1, ways[1].0, ways[1].1))
    }

    fn towns_group(mut self) -> Option<Question> {
        let (group, members) = self.group(1)?;
        match self.rng.below(3) {
            0 => {
                let text = format!("How many people live in the towns of the region {group} together?");
                self.sum(text, &members, "population", None)
            }
            1 => {
                let text = format!("In which town of the region {group} do the most people per square kilometre live?");
                self.largest(text, &members, "population", Some("area"))
            }
            _ => self.largest(format!("Which town of the region {group} lies highest?"), &members, "elevation", None),
        }
    }

    fn staff_one(mut self) -> Option<Question> {
        let name = self.names(1).pop()?;
        if self.rng.below(2) == 0 {
            let (months, salary) = (self.between(3, 24), self.value(&name, "salary")?);
            let text = format!("How many dollars does {name} earn in {months} months?");
            return self.number(text, &format!("{months} * {salary}"));
        }
        let (percent, salary) = (self.between(2, 15), self.value(&name, "salary")?);
        let text = format!("How many dollars a month will {name} earn after a raise of {percent} percent?");
        self.number(text, &format!("{salary} * (1 + {percent} / 100)"))
    }

    fn staff_two(mut self) -> Option<Question> {
        let [a, b] = self.names(2).try_into().ok()?;
        let field = if self.rng.below(2) == 0 { "salary" } else { "hours" };
        let (left, right) = (self.value(&a, field)?, self.value(&b, field)?);
        let count = self.between(2, 24);
        let text = match field {
            "salary" => format!("How many dollars do {a} and {b} earn together in {count} months?"),
            _ => format!("How many hours do {a} and {b} work together in {count} weeks?"),
        };
        self.number(text, &format!("({left} + {right}) * {count}"))
    }

    fn staff_group(mut self) -> Option<Question> {
        let (group, members) = self.group(2)?;
        match self.rng.below(3) {
            0 => {
                let text = format!("How many dollars a month does the {group} department cost in salaries?");
                self.sum(text, &members, "salary", None)
            }
            1 => {
                let text = format!("Who in the {group} department has the highest salary per hour of work a week?");
                self.largest(text, &members, "salary", Some("hours"))
            }
            _ => {
                let text = format!(
                    "How many years of service do the people of the {group} department have on average, as an exact number?"
                );
                let sum = self.terms(&members, "years", None)?;
                let expression = format!("({sum}) / {}", members.len());
                self.number(text, &expression)
            }
        }
    }
}
