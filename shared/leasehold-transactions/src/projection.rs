//! `ProjectionExpression`, applied here: which state of an item is to be seen is only known once it has been read whole.

use std::collections::{BTreeMap, HashMap};

use aws_sdk_dynamodb::types::AttributeValue;

use crate::attributes::Item;

/// Paths into an item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Projection(Vec<Vec<Step>>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Member(String),
    Element(usize),
}

impl Projection {
    pub(crate) fn parse(text: &str, names: &HashMap<String, String>) -> Result<Self, String> {
        text.split(',').map(|path| parse_path(path.trim(), names)).collect::<Result<_, _>>().map(Self)
    }

    /// What of the item the paths lead to. Elements of a list move together, as DynamoDB's do.
    pub(crate) fn apply(&self, item: &Item) -> Item {
        let paths: Vec<_> = self.0.iter().map(Vec::as_slice).collect();
        project_map(item, &paths)
    }
}

fn parse_path(path: &str, names: &HashMap<String, String>) -> Result<Vec<Step>, String> {
    let mut steps = Vec::new();
    for member in path.split('.') {
        let (name, indexes) = member.split_at(member.find('[').unwrap_or(member.len()));
        let name = match name.trim() {
            "" => return Err(format!("The path `{path}` has an empty name.")),
            placeholder if placeholder.starts_with('#') => names
                .get(placeholder)
                .cloned()
                .ok_or_else(|| format!("expressionAttributeNames has no {placeholder}."))?,
            name if name.chars().all(|c| c.is_alphanumeric() || c == '_') => name.to_owned(),
            name => return Err(format!("`{name}` is no attribute name: use a placeholder.")),
        };
        steps.push(Step::Member(name));
        for index in indexes.split_inclusive(']') {
            let digits = index.trim().strip_prefix('[').and_then(|index| index.strip_suffix(']'));
            let index = digits.and_then(|digits| digits.trim().parse().ok());
            steps.push(Step::Element(index.ok_or_else(|| format!("The path `{path}` has a wrong index."))?));
        }
    }
    Ok(steps)
}

/// Groups the paths by their first step, so that a member costs one look-up and not one for each path.
fn project_map(members: &Item, paths: &[&[Step]]) -> Item {
    let mut below: HashMap<&str, Vec<&[Step]>> = HashMap::new();
    for path in paths {
        if let [Step::Member(member), rest @ ..] = path {
            below.entry(member).or_default().push(rest);
        }
    }
    below
        .into_iter()
        .filter_map(|(name, below)| Some((name.to_owned(), project(members.get(name)?, &below)?)))
        .collect()
}

fn project(value: &AttributeValue, below: &[&[Step]]) -> Option<AttributeValue> {
    if below.iter().any(|path| path.is_empty()) {
        return Some(value.clone());
    }
    match value {
        AttributeValue::M(members) => {
            let projected = project_map(members, below);
            (!projected.is_empty()).then_some(AttributeValue::M(projected))
        }
        AttributeValue::L(values) => {
            let mut wanted: BTreeMap<usize, Vec<&[Step]>> = BTreeMap::new();
            for path in below {
                if let [Step::Element(index), rest @ ..] = path {
                    wanted.entry(*index).or_default().push(rest);
                }
            }
            let element = |(index, below): (usize, Vec<&[Step]>)| project(values.get(index)?, &below);
            let projected: Vec<_> = wanted.into_iter().filter_map(element).collect();
            (!projected.is_empty()).then_some(AttributeValue::L(projected))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(value: &str) -> AttributeValue {
        AttributeValue::S(value.into())
    }

    fn item() -> Item {
        let inner = Item::from([("x".to_owned(), text("1")), ("y".to_owned(), text("2"))]);
        Item::from([
            ("id".to_owned(), text("a")),
            ("m".to_owned(), AttributeValue::M(inner.clone())),
            ("l".to_owned(), AttributeValue::L(vec![text("0"), AttributeValue::M(inner), text("2")])),
        ])
    }

    fn projected(paths: &str) -> Item {
        let names = HashMap::from([("#m".to_owned(), "m".to_owned())]);
        Projection::parse(paths, &names).expect("valid").apply(&item())
    }

    #[test]
    fn paths_lead_into_maps_and_lists() {
        assert_eq!(projected("id, nothing"), Item::from([("id".to_owned(), text("a"))]));
        let only_x = Item::from([("x".to_owned(), text("1"))]);
        assert_eq!(projected("#m.x"), Item::from([("m".to_owned(), AttributeValue::M(only_x.clone()))]));
        let elements = AttributeValue::L(vec![AttributeValue::M(only_x), text("2")]);
        assert_eq!(projected("l[1].x, l[2], l[9]"), Item::from([("l".to_owned(), elements)]));
        assert_eq!(projected("id.x, l.x"), Item::new());
    }

    #[test]
    fn wrong_paths_are_refused() {
        for path in ["", "a..b", "#none", "a[", "a[x]", "a-b", "a,,b"] {
            assert!(Projection::parse(path, &HashMap::new()).is_err(), "{path}");
        }
    }

    #[test]
    fn wrong_paths_are_named_as_they_were_written() {
        for path in ["a..\"b\"", "a[\"b\"]", "a\"b\""] {
            let message = Projection::parse(path, &HashMap::new()).expect_err("wrong");
            assert!(message.contains(&format!("`{path}`")), "{message}");
        }
    }
}
