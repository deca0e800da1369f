//! Who and what stories are about. Owns names, pronouns and plurals; must not know numbers.

/// Somebody, with the words that stand for them.
pub struct Person {
    pub name: &'static str,
    /// she or he
    pub they: &'static str,
    /// She or He
    pub at_start: &'static str,
}

const fn she(name: &'static str) -> Person {
    Person { name, they: "she", at_start: "She" }
}

const fn he(name: &'static str) -> Person {
    Person { name, they: "he", at_start: "He" }
}

/// First names from many places.
pub const PEOPLE: [Person; 36] = [
    she("Amara"),
    she("Anna"),
    she("Beatriz"),
    she("Chloe"),
    she("Dalia"),
    she("Elif"),
    she("Freya"),
    she("Grace"),
    she("Hana"),
    she("Ingrid"),
    she("Julia"),
    she("Keiko"),
    she("Leila"),
    she("Maya"),
    she("Nadia"),
    she("Olga"),
    she("Priya"),
    she("Rosa"),
    he("Ahmed"),
    he("Bruno"),
    he("Carlos"),
    he("Diego"),
    he("Emil"),
    he("Farid"),
    he("George"),
    he("Hugo"),
    he("Ivan"),
    he("Jonas"),
    he("Kofi"),
    he("Liam"),
    he("Marco"),
    he("Noah"),
    he("Omar"),
    he("Pavel"),
    he("Ravi"),
    he("Wei"),
];

/// Something that is counted and sold.
pub struct Item {
    pub one: &'static str,
    pub many: &'static str,
}

const fn item(one: &'static str, many: &'static str) -> Item {
    Item { one, many }
}

/// Small things to own, buy and give away.
pub const ITEMS: [Item; 24] = [
    item("marble", "marbles"),
    item("sticker", "stickers"),
    item("pencil", "pencils"),
    item("notebook", "notebooks"),
    item("balloon", "balloons"),
    item("postcard", "postcards"),
    item("seashell", "seashells"),
    item("button", "buttons"),
    item("toy car", "toy cars"),
    item("candle", "candles"),
    item("ribbon", "ribbons"),
    item("paintbrush", "paintbrushes"),
    item("stamp", "stamps"),
    item("badge", "badges"),
    item("puzzle", "puzzles"),
    item("bracelet", "bracelets"),
    item("comic book", "comic books"),
    item("eraser", "erasers"),
    item("paper plane", "paper planes"),
    item("whistle", "whistles"),
    item("keyring", "keyrings"),
    item("mug", "mugs"),
    item("poster", "posters"),
    item("glove", "gloves"),
];

/// Things that are grown and packed.
pub const CROPS: [&str; 12] = [
    "apples",
    "pears",
    "oranges",
    "lemons",
    "peaches",
    "plums",
    "tomatoes",
    "cucumbers",
    "peppers",
    "onions",
    "pumpkins",
    "melons",
];
