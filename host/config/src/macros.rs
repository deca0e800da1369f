//! The three macros in which configuration structs are written, so that a key's type, default, limits and help stand in
//! one place.
//!
//! Owns the expansion to serde structs plus [`crate::schema`] descriptions. Must not know a concrete key.

/// A table: `name: type = default => [rules];` per key, the prime-rl keys of this table that prl
/// does not have, and other names with what to write instead.
macro_rules! section {
    (
        $(#[doc = $sdoc:literal])+
        pub struct $name:ident {
            $( $(#[doc = $doc:literal])+ $key:ident : $ty:ty = $default:expr $(=> [$($rule:expr),+])? ; )*
        }
        $(unsupported [$($unsupported:literal),* $(,)?])?
        $(renamed [$($old:literal => $new:literal),* $(,)?])?
    ) => {
        $(#[doc = $sdoc])+
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $name {
            $( $(#[doc = $doc])+ pub $key: $ty, )*
        }

        impl Default for $name {
            fn default() -> Self {
                $name { $( $key: $default, )* }
            }
        }

        impl $crate::schema::Described for $name {
            fn section() -> $crate::schema::Section {
                #[allow(unused_imports)]
                use $crate::schema::Rule::*;
                #[allow(unused_variables)]
                let defaults = $name::default();
                $crate::schema::Section {
                    doc: concat!($($sdoc),+),
                    keys: vec![
                        $( $crate::schema::Key {
                            name: stringify!($key),
                            doc: concat!($($doc),+),
                            node: <$ty as $crate::schema::Field>::node(),
                            default: $crate::schema::json(&defaults.$key),
                            rules: vec![$($($rule),+)?],
                        }, )*
                    ],
                    open: false,
                    unsupported: &[$($($unsupported),*)?],
                    renamed: &[$($(($old, $new)),*)?],
                }
            }
        }

        impl $crate::schema::Field for $name {
            fn node() -> $crate::schema::Node {
                let kind = $crate::schema::Kind::Table(<$name as $crate::schema::Described>::section());
                $crate::schema::Node { kind, optional: false }
            }
        }
    };
}

/// A table whose `type` picks the section. `default "tag"` names the variant of a table without `type`.
macro_rules! union {
    (
        $(#[doc = $udoc:literal])+
        pub enum $name:ident {
            $( $(#[doc = $doc:literal])+ $tag:literal => $variant:ident($ty:ty), )+
        }
        $(default $default:literal)?
        $(unsupported [$($unsupported:literal),* $(,)?])?
    ) => {
        $(#[doc = $udoc])+
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(tag = "type")]
        pub enum $name {
            $( $(#[doc = $doc])+ #[serde(rename = $tag)] $variant($ty), )+
        }

        impl $name {
            /// The value of `type`.
            pub fn tag(&self) -> &'static str {
                match self { $( $name::$variant(_) => $tag, )+ }
            }
        }

        impl $crate::schema::Field for $name {
            fn node() -> $crate::schema::Node {
                #[allow(unused_mut, unused_assignments)]
                let mut default = None;
                $( default = Some($default); )?
                let kind = $crate::schema::Kind::Union($crate::schema::Union {
                    variants: vec![$( ($tag, <$ty as $crate::schema::Described>::section()), )+],
                    default,
                    unsupported: &[$($($unsupported),*)?],
                });
                $crate::schema::Node { kind, optional: false }
            }
        }
    };
}

/// One word of a fixed list.
macro_rules! choice {
    (
        $(#[doc = $cdoc:literal])+
        pub enum $name:ident { $( $(#[doc = $doc:literal])+ $word:literal => $variant:ident, )+ }
        $(unsupported [$($unsupported:literal),* $(,)?])?
    ) => {
        $(#[doc = $cdoc])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        pub enum $name {
            $( $(#[doc = $doc])+ #[serde(rename = $word)] $variant, )+
        }

        impl $name {
            /// The word as written in a configuration.
            pub fn as_str(self) -> &'static str {
                match self { $( $name::$variant => $word, )+ }
            }
        }

        impl $crate::schema::Field for $name {
            fn node() -> $crate::schema::Node {
                let kind = $crate::schema::Kind::Choice(&[$($word),+], &[$($($unsupported),*)?]);
                $crate::schema::Node { kind, optional: false }
            }
        }
    };
}

pub(crate) use {choice, section, union};
