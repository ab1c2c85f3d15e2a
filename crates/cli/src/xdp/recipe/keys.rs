//! The `KEY=VALUE` pairs of a recipe.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::str::FromStr;

use bpf::Select;
use roxie_hook::quantity;

use super::{QUEUES_MAX, roce};
use crate::failure::{Failure, Outcome};

/// The `KEY=VALUE` pairs that are not used yet, and the keys that were looked up.
pub(super) struct Keys {
    recipe: String,
    given: BTreeMap<String, String>,
    known: Vec<&'static str>,
    /// See [`Cooked::queues`](super::Cooked::queues).
    pub(super) queues: Option<u32>,
}

impl Keys {
    pub(super) fn parse(recipe: &str, text: &str) -> Outcome<Keys> {
        let mut given = BTreeMap::new();
        for pair in text.split(',').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair
                .split_once('=')
                .ok_or_else(|| usage(format!("recipe {recipe}: '{pair}' is not KEY=VALUE")))?;
            if given.insert(key.to_owned(), value.to_owned()).is_some() {
                return Err(usage(format!("recipe {recipe}: {key}= is given twice")));
            }
        }
        Ok(Keys { recipe: recipe.to_owned(), given, known: Vec::new(), queues: None })
    }

    fn value(&mut self, key: &'static str) -> Option<String> {
        self.known.push(key);
        self.given.remove(key)
    }

    pub(super) fn take<T: FromStr>(&mut self, key: &'static str, default: T) -> Outcome<T> {
        match self.value(key) {
            Some(text) => text.parse().map_err(|_| self.wrong(key, &text)),
            None => Ok(default),
        }
    }

    /// Parses a number in a range that `T` can hold.
    pub(super) fn number<T: TryFrom<u64>>(
        &mut self,
        key: &'static str,
        default: Option<T>,
        range: RangeInclusive<u64>,
    ) -> Outcome<T> {
        match (self.value(key), default) {
            (Some(text), _) => {
                let number = quantity(&text).filter(|number| range.contains(number));
                number.and_then(|number| T::try_from(number).ok()).ok_or_else(|| {
                    let (first, last, recipe) = (range.start(), range.end(), &self.recipe);
                    usage(format!(
                        "recipe {recipe}: {key}={text}: a whole number from {first} to {last} is wanted"
                    ))
                    .hint("digits, which may end in K, M, G (1000) or Ki, Mi, Gi (1024): 64K, 2Mi")
                })
            }
            (None, Some(default)) => Ok(default),
            (None, None) => Err(self.missing(&format!("{key}="))),
        }
    }

    /// Parses the number of receive queues.
    pub(super) fn queues(&mut self, default: u32) -> Outcome<u32> {
        let is_given = self.given.contains_key("queues");
        let queues = self.number("queues", Some(default), 1..=QUEUES_MAX)?;
        self.queues = is_given.then_some(queues);
        Ok(queues)
    }

    pub(super) fn optional_list(&mut self, key: &'static str) -> Vec<String> {
        let text = self.value(key).unwrap_or_default();
        text.split('+').filter(|one| !one.is_empty()).map(str::to_owned).collect()
    }

    /// Parses a list with at least one value.
    pub(super) fn list(&mut self, key: &'static str) -> Outcome<Vec<String>> {
        let list = self.optional_list(key);
        if list.is_empty() { Err(self.missing(&format!("{key}="))) } else { Ok(list) }
    }

    /// Parses the packets that the recipe selects.
    pub(super) fn only(&mut self, default: &str) -> Outcome<Select> {
        let text = self.value("only").unwrap_or_else(|| default.to_owned());
        match text.as_str() {
            "roce" => roce(self),
            "ip" => Ok(Select::Ip),
            "all" if default == "all" => Ok(Select::All),
            _ => Err(self.wrong("only", &text)),
        }
    }

    pub(super) fn wrong(&self, key: &str, value: &str) -> Failure {
        usage(format!("recipe {}: {key}={value} is invalid", self.recipe))
    }

    pub(super) fn missing(&self, what: &str) -> Failure {
        usage(format!("recipe {} needs {what}", self.recipe))
    }

    pub(super) fn finish(&self) -> Outcome {
        let Some(key) = self.given.keys().next() else { return Ok(()) };
        let failure = usage(format!("recipe {} has no {key}=", self.recipe));
        Err(if self.known.is_empty() {
            failure
        } else {
            failure.hint(format!("it has {}", self.known.join(", ")))
        })
    }
}

pub(super) fn usage(what: String) -> Failure {
    Failure::new(what).code(2)
}
