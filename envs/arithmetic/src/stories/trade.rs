//! Stories about buying, earning, packing, baking and growing. Owns those stories; must not know how they are written
//! down.

use super::cast::CROPS;
use super::{Ending, Story, ending, money};
use prl_numbers::Rational;

/// A bill, and the change.
pub fn shopping(story: &mut Story) -> Option<Ending> {
    let who = story.person();
    let (name, they, item) = (who.name, who.they, story.item());
    let (count, price) = (story.exact(2, 9), story.price(1, 12)?);
    let bill = story.step(count, '*', price)?;
    if story.steps == 2 {
        story.say(&format!("{name} buys {count} {} for {} each.", item.many, money(price)));
        return change(story, name, they, bill);
    }
    let other = story.item();
    if other.one == item.one {
        return None;
    }
    let (other_count, other_price) = (story.exact(2, 9), story.price(1, 12)?);
    story.say(&format!("One {} costs {} and one {} costs {}.", item.one, money(price), other.one, money(other_price)));
    story.say(&format!("{name} buys {count} {} and {other_count} {}.", item.many, other.many));
    let other_bill = story.step(other_count, '*', other_price)?;
    let mut bill = story.step(bill, '+', other_bill)?;
    if story.steps == 3 {
        return ending(format!("How many dollars does {they} spend?"), bill);
    }
    if story.steps == 5 {
        let coupon = story.price(1, 6)?;
        story.say(&format!("A coupon takes {} off the bill.", money(coupon)));
        bill = story.step(bill, '-', coupon)?;
    }
    change(story, name, they, bill)
}

fn change(story: &mut Story, name: &str, they: &str, bill: Rational) -> Option<Ending> {
    let note =
        [5, 10, 20, 50, 100, 200, 500].into_iter().map(Rational::from).find(|note| note.to_f64() > bill.to_f64())?;
    let note = story.note(note);
    story.say(&format!("{name} pays with {}.", money(note)));
    let back = story.step(note, '-', bill)?;
    ending(format!("How many dollars does {they} get back?"), back)
}

/// Pay, and what it costs to earn it.
pub fn wages(story: &mut Story) -> Option<Ending> {
    let who = story.person();
    let (name, they) = (who.name, who.they);
    let (hours, days, wage) = (story.exact(3, 9), story.exact(2, 6), story.price(9, 25)?);
    story.say(&format!("{name} works {hours} hours a day for {days} days and earns {} an hour.", money(wage)));
    let worked = story.count(hours, '*', days)?;
    let earned = story.step(worked, '*', wage)?;
    match story.steps {
        2 => ending(format!("How many dollars does {they} earn?"), earned),
        3 => {
            let tools = story.price(10, 60)?;
            story.say(&format!("From this {they} pays {} for a pair of boots.", money(tools)));
            let rest = story.step(earned, '-', tools)?;
            ending("How many dollars are left?".into(), rest)
        }
        _ => {
            let fare = story.price(2, 9)?;
            story.say(&format!("On each of these days {they} spends {} on fares.", money(fare)));
            let fares = story.step(fare, '*', days)?;
            let rest = story.step(earned, '-', fares)?;
            if story.steps == 4 {
                return ending(format!("How many dollars does {they} have left of the pay?"), rest);
            }
            let saved = story.price(20, 200)?;
            story.say(&format!("Before that {they} had saved {}.", money(saved)));
            let all = story.step(saved, '+', rest)?;
            ending(format!("How many dollars does {they} have then?"), all)
        }
    }
}

/// From crates to bags.
pub fn packing(story: &mut Story) -> Option<Ending> {
    let crop = story.rng.pick(&CROPS)?;
    let (crates, each) = (story.exact(3, 12), story.number(12, 40));
    let all = story.count(crates, '*', each)?;
    let size = if story.steps > 2 { story.exact(3, 10) } else { 1.into() };
    // So many that the rest fills whole bags.
    let over = all.numerator() % size.numerator();
    let bad = over + size.numerator() * (1 + story.rng.below(5) as i128);
    let bad = Rational::new(bad, 1)?;
    let bad = story.note(bad);
    story
        .say(&format!("A farm fills {crates} crates with {each} {crop} each. {bad} of the {crop} turn out to be bad."));
    let good = story.count(all, '-', bad)?;
    if story.steps == 2 {
        return ending(format!("How many {crop} are good?"), good);
    }
    story.say(&format!("The good ones are packed into bags of {size}."));
    let bags = story.count(good, '/', size)?;
    if story.steps == 3 {
        return ending("How many bags are filled?".into(), bags);
    }
    let price = story.price(2, 9)?;
    story.say(&format!("Each bag is sold for {}.", money(price)));
    let takings = story.step(bags, '*', price)?;
    if story.steps == 4 {
        return ending("How many dollars do the bags bring in?".into(), takings);
    }
    let cost = story.price(5, 40)?;
    story.say(&format!("The delivery costs {}.", money(cost)));
    let profit = story.step(takings, '-', cost)?;
    ending("How many dollars remain after paying for the delivery?".into(), profit)
}

/// Flour for more than one batch.
pub fn baking(story: &mut Story) -> Option<Ending> {
    let who = story.person();
    let (name, they) = (who.name, who.they);
    let (cookies, flour) = (story.exact(6, 24), story.rng.below(20) as i64 * 10 + 100);
    let flour = story.exact(flour, flour);
    let wanted = cookies.times((2 + story.rng.below(7) as i64).into())?;
    let wanted = story.note(wanted);
    story.say(&format!(
        "A batch of {cookies} cookies takes {flour} grams of flour. {name} wants to bake {wanted} cookies."
    ));
    let batches = story.count(wanted, '/', cookies)?;
    let needed = story.count(batches, '*', flour)?;
    if story.steps == 2 {
        return ending(format!("How many grams of flour does {they} need?"), needed);
    }
    let pack = if story.steps > 3 { story.one_of(&[50, 100, 125, 200, 250])? } else { 10.into() };
    // So much that the rest is whole packs.
    let owned = needed.numerator() % pack.numerator() + pack.numerator() * (1 + story.rng.below(3) as i128);
    let owned = Rational::new(owned, 1)?;
    let owned = story.note(owned);
    story.say(&format!("{} already has {owned} grams of flour.", who.at_start));
    let missing = story.count(needed, '-', owned)?;
    if story.steps == 3 {
        return ending(format!("How many grams does {they} still have to buy?"), missing);
    }
    story.say(&format!("The shop sells flour in packs of {pack} grams."));
    let packs = story.count(missing, '/', pack)?;
    if story.steps == 4 {
        return ending(format!("How many packs does {they} have to buy?"), packs);
    }
    let price = story.price(1, 4)?;
    story.say(&format!("A pack costs {}.", money(price)));
    let cost = story.step(packs, '*', price)?;
    ending(format!("How many dollars does {they} spend on the packs?"), cost)
}

/// A harvest.
pub fn garden(story: &mut Story) -> Option<Ending> {
    let who = story.person();
    let (name, crop) = (who.name, story.rng.pick(&CROPS)?);
    let (rows, plants, each) = (story.exact(2, 9), story.exact(3, 15), story.number(2, 12));
    story.say(&format!(
        "{name} has a garden of {rows} rows with {plants} plants in each. Every plant bears {each} {crop}."
    ));
    let all = story.count(rows, '*', plants)?;
    let mut harvest = story.count(all, '*', each)?;
    if story.steps == 2 {
        return ending(format!("How many {crop} does the garden bear?"), harvest);
    }
    let eaten = story.number(3, 20);
    story.say(&format!("Birds eat {eaten} of them."));
    harvest = story.count(harvest, '-', eaten)?;
    if story.steps == 3 {
        return ending(format!("How many {crop} are left?"), harvest);
    }
    let boxes = story.exact(2, 8);
    story.say(&format!("The rest is shared evenly among {boxes} boxes."));
    let in_box = story.count(harvest, '/', boxes)?;
    if story.steps == 4 {
        return ending(format!("How many {crop} go into each box?"), in_box);
    }
    let given = story.exact(2, 6);
    story.say(&format!("{name} takes {given} out of one of the boxes for a neighbour."));
    let rest = story.count(in_box, '-', given)?;
    ending(format!("How many {crop} are left in that box?"), rest)
}
