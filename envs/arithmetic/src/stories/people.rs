//! Stories about what people have, how old they are, how they learn and travel. Owns those stories; must not know how
//! they are written down.

use super::{Ending, Story, ending};
use crate::problem::Unit;
use prl_numbers::Rational;

/// Things come and go.
pub fn collecting(story: &mut Story) -> Option<Ending> {
    let [who, other] = story.people();
    let (name, they, start, items) = (who.name, who.they, who.at_start, story.item().many);
    let mut now = story.number(10, 40);
    story.say(&format!("{name} has {now} {items}."));
    while story.left() > 0 {
        match story.rng.below(6) {
            0 => {
                let found = story.number(2, 20);
                story.say(&format!("{start} finds {found} more."));
                now = story.count(now, '+', found)?;
            }
            1 => {
                let given = story.number(2, 15);
                story.say(&format!("{start} gives {given} of them to {}.", other.name));
                now = story.count(now, '-', given)?;
            }
            2 => {
                let lost = story.number(1, 8);
                story.say(&format!("Then {they} loses {lost}."));
                now = story.count(now, '-', lost)?;
            }
            3 => {
                let parts = story.exact(2, 4);
                let share = ["half", "a third", "a quarter"][parts.numerator() as usize - 2];
                story.say(&format!("{start} keeps {share} of what {they} has and gives the rest to {}.", other.name));
                now = story.count(now, '/', parts)?;
            }
            4 => {
                let times = story.exact(2, 4);
                let words = ["twice", "three times", "four times"][times.numerator() as usize - 2];
                story.say(&format!("By the next week {they} has {words} as many."));
                now = story.count(now, '*', times)?;
            }
            _ if story.left() > 1 => {
                let (packs, each) = (story.exact(2, 6), story.number(3, 12));
                story.say(&format!("{start} buys {packs} packs of {each} {items} each."));
                let bought = story.count(packs, '*', each)?;
                now = story.count(now, '+', bought)?;
            }
            _ => {}
        }
    }
    ending(format!("How many {items} does {name} have now?"), now)
}

/// Ages that hang together.
pub fn ages(story: &mut Story) -> Option<Ending> {
    let [a, b, c] = story.people().map(|person| person.name);
    let (young, times, older) = (story.exact(3, 15), story.exact(2, 4), story.exact(2, 20));
    let words = ["twice", "three times", "four times"][times.numerator() as usize - 2];
    story.say(&format!("{c} is {young} years old. {b} is {words} as old as {c}. {a} is {older} years older than {b}."));
    let middle = story.count(young, '*', times)?;
    let old = story.count(middle, '+', older)?;
    if story.steps == 2 {
        return ending(format!("How old is {a}?"), old);
    }
    let two = story.count(old, '+', middle)?;
    if story.steps == 3 {
        return ending(format!("How old are {a} and {b} together?"), two);
    }
    let three = story.count(two, '+', young)?;
    if story.steps == 4 {
        return ending("How old are the three of them together?".into(), three);
    }
    let mean = story.step(three, '/', 3.into())?;
    ending("What is the average age of the three of them, in years?".into(), mean)
}

/// How pupils come to school.
pub fn school(story: &mut Story) -> Option<Ending> {
    let all = story.rng.below(20) as i64 * 20 + 80;
    let all = story.exact(all, all);
    let percent = story.one_of(&[10, 20, 25, 30, 40, 50, 60, 75])?;
    story.say(&format!("A school has {all} students. {percent}% of them come by bus."));
    let bus = story.count(all, '*', percent.over(100.into())?)?;
    let others = story.count(all, '-', bus)?;
    if story.steps == 2 {
        return ending("How many students do not come by bus?".into(), others);
    }
    let parts = story.exact(2, 6);
    story.say(&format!("One in {parts} of the other students comes by bicycle."));
    let cycling = story.count(others, '/', parts)?;
    if story.steps == 3 {
        return ending("How many students come by bicycle?".into(), cycling);
    }
    story.say("Everybody else walks.");
    let walking = story.count(others, '-', cycling)?;
    if story.steps == 4 {
        return ending("How many students walk?".into(), walking);
    }
    let bands = story.exact(2, 5);
    story.say(&format!("Every student who walks is given {bands} reflecting bands."));
    let given = story.count(walking, '*', bands)?;
    ending("How many bands are given out?".into(), given)
}

/// A book, page by page.
pub fn reading(story: &mut Story) -> Option<Ending> {
    let who = story.person();
    let (name, they) = (who.name, who.they);
    if story.steps == 2 {
        let (daily, days) = (story.number(8, 30), story.exact(3, 9));
        let read = story.count(daily, '*', days)?;
        let pages = more(story, read, 10, 120)?;
        story.say(&format!("A book has {pages} pages. {name} reads {daily} pages a day for {days} days."));
        let rest = story.count(pages, '-', read)?;
        return ending(format!("How many pages does {they} still have to read?"), rest);
    }
    let (weekday, weekend) = (story.number(5, 25), story.number(10, 40));
    story.say(&format!("{name} reads {weekday} pages on each of the 5 weekdays and {weekend} pages on each of the 2 days of the weekend."));
    let early = story.count(weekday, '*', 5.into())?;
    let late = story.count(weekend, '*', 2.into())?;
    let week = story.count(early, '+', late)?;
    if story.steps == 3 {
        return ending(format!("How many pages does {they} read in a week?"), week);
    }
    let daily = if story.steps == 5 { story.exact(8, 25) } else { 1.into() };
    let pages = week.plus(daily.times((3 + story.rng.below(12) as i64).into())?)?;
    let pages = story.note(pages);
    story.say(&format!("The book has {pages} pages."));
    let rest = story.count(pages, '-', week)?;
    if story.steps == 4 {
        return ending("How many pages are left after one week?".into(), rest);
    }
    story.say(&format!("After that week {they} reads {daily} pages a day."));
    let days = story.count(rest, '/', daily)?;
    ending(format!("How many more days does {they} need to finish the book?"), days)
}

/// A trip in legs.
pub fn travel(story: &mut Story) -> Option<Ending> {
    let name = story.person().name;
    let (speed, hours) = (story.exact(40, 95), story.exact(2, 6));
    if story.steps == 2 {
        let driven = story.count(speed, '*', hours)?;
        let way = more(story, driven, 20, 300)?;
        story.say(&format!(
            "{name} has to drive {way} km. So far {name} has driven for {hours} hours at {speed} km per hour."
        ));
        let rest = story.count(way, '-', driven)?;
        return ending("How many kilometres are left?".into(), rest);
    }
    let (later, more_hours) = (story.exact(40, 95), story.exact(2, 6));
    story.say(&format!(
        "{name} drives {hours} hours at {speed} km per hour and then {more_hours} hours at {later} km per hour."
    ));
    let first = story.count(speed, '*', hours)?;
    let second = story.count(later, '*', more_hours)?;
    let driven = story.count(first, '+', second)?;
    if story.steps == 3 {
        return ending(format!("How far does {name} drive, in kilometres?"), driven);
    }
    let slow = if story.steps == 5 { story.exact(30, 60) } else { 1.into() };
    let way = driven.plus(slow.times((2 + story.rng.below(6) as i64).into())?)?;
    let way = story.note(way);
    story.say(&format!("The whole trip is {way} km long."));
    let rest = story.count(way, '-', driven)?;
    if story.steps == 4 {
        return ending("How many kilometres are left after that?".into(), rest);
    }
    story.say(&format!("The rest is a mountain road, on which {name} drives {slow} km per hour."));
    let hours = story.count(rest, '/', slow)?;
    ending(format!("How many hours does {name} drive on the mountain road?"), hours)
}

/// Shares of a whole, in percent.
pub fn shares(story: &mut Story) -> Option<Ending> {
    let name = story.person().name;
    let items = story.item().many;
    let whole = *story.rng.pick(&[20, 25, 40, 50, 80, 100, 200])?;
    let red = story.exact(1, whole - 3);
    let three = story.steps == 4;
    let blue =
        if three { story.exact(1, whole - 2 - red.numerator() as i64) } else { Rational::from(whole).minus(red)? };
    let mut sum = story.step(red, '+', blue)?;
    if three {
        let green = Rational::from(whole).minus(sum)?;
        let green = story.note(green);
        sum = story.step(sum, '+', green)?;
        story.say(&format!("{name} has {red} red, {blue} blue and {green} green {items}."));
    } else {
        story.note(blue);
        story.say(&format!("{name} has {red} red and {blue} blue {items} and no others."));
    }
    let share = story.step(red, '/', sum)?;
    let percent = story.step(share, '*', 100.into())?;
    let question = format!("What percentage of the {items} is red?");
    Some(Ending { question, answer: percent, unit: Unit::Percent })
}

/// A told number that exceeds `value` by `least` to `most`.
fn more(story: &mut Story, value: Rational, least: usize, most: usize) -> Option<Rational> {
    let sum = value.plus(((least + story.rng.below(most - least + 1)) as i64).into())?;
    Some(story.note(sum))
}
