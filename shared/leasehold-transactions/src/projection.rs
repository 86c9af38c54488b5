//! `ProjectionExpression`, evaluated here. The visible state of an item is known only after it has been read whole.

use std::collections::{BTreeMap, HashMap};

use aws_sdk_dynamodb::types::AttributeValue;

use crate::key::Item;

/// The longest path, in steps: DynamoDB nests no deeper.
const MAX_STEPS: usize = 32;

/// Paths into an item, as a tree. The cost of an item is limited by its own size, however many paths there are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Projection {
    /// Whether a path ends here.
    is_whole: bool,
    members: BTreeMap<String, Projection>,
    elements: BTreeMap<usize, Projection>,
}

/// Returns the parts of an item that a request asks for: all without a projection.
pub(crate) fn project(item: Item, projection: Option<&Projection>) -> Item {
    match projection {
        Some(projection) => projection.apply(&item),
        None => item,
    }
}

enum PathPart {
    Member(String),
    Element(usize),
}

impl Projection {
    pub(crate) fn parse(text: &str, names: &HashMap<String, String>) -> Result<Self, String> {
        let mut projection = Self::default();
        for path in text.split(',') {
            let refused = || format!("The path `{}` overlaps or contradicts another one.", path.trim());
            projection.add(parse_path(path.trim(), names)?).ok_or_else(refused)?;
        }
        Ok(projection)
    }

    /// Adds a path. Returns `None` if another one is a part of it, or the reverse, or takes a list for a map.
    fn add(&mut self, path: Vec<PathPart>) -> Option<()> {
        let mut node = self;
        for step in path {
            node = match step {
                _ if node.is_whole => return None,
                PathPart::Member(name) if node.elements.is_empty() => node.members.entry(name).or_default(),
                PathPart::Element(index) if node.members.is_empty() => node.elements.entry(index).or_default(),
                _ => return None,
            };
        }
        let is_new = *node == Self::default();
        node.is_whole = true;
        is_new.then_some(())
    }

    /// Returns the parts of the item that the paths name. Elements of a list move together, as in DynamoDB.
    fn apply(&self, item: &Item) -> Item {
        // Looks up the members of the smaller map in the larger one.
        if item.len() < self.members.len() {
            let wanted = |(name, value)| Some((name, self.members.get(name)?, value));
            return item.iter().filter_map(wanted).filter_map(projected).collect();
        }
        let found = |(name, below)| Some((name, below, item.get(name)?));
        self.members.iter().filter_map(found).filter_map(projected).collect()
    }

    fn project(&self, value: &AttributeValue) -> Option<AttributeValue> {
        if self.is_whole {
            return Some(value.clone());
        }
        match value {
            AttributeValue::M(members) => {
                let projected = self.apply(members);
                (!projected.is_empty()).then_some(AttributeValue::M(projected))
            }
            AttributeValue::L(values) => {
                let element = |(index, below): (&usize, &Self)| below.project(values.get(*index)?);
                // Indexes beyond the list are not visited.
                let projected: Vec<_> = self.elements.range(..values.len()).filter_map(element).collect();
                (!projected.is_empty()).then_some(AttributeValue::L(projected))
            }
            _ => None,
        }
    }
}

fn projected((name, below, value): (&String, &Projection, &AttributeValue)) -> Option<(String, AttributeValue)> {
    Some((name.clone(), below.project(value)?))
}

fn parse_path(path: &str, names: &HashMap<String, String>) -> Result<Vec<PathPart>, String> {
    let mut steps = Vec::new();
    for member in path.split('.') {
        let (name, indexes) = member.split_at(member.find('[').unwrap_or(member.len()));
        let name = match name.trim() {
            "" => return Err(format!("The path `{path}` has an empty name.")),
            placeholder if placeholder.starts_with('#') => names
                .get(placeholder)
                .cloned()
                .ok_or_else(|| format!("expressionAttributeNames has no {placeholder}."))?,
            name if is_plain(name) => name.to_owned(),
            name => return Err(format!("`{name}` is no attribute name: use a placeholder.")),
        };
        steps.push(PathPart::Member(name));
        for index in indexes.split_inclusive(']') {
            let digits = index.trim().strip_prefix('[').and_then(|index| index.strip_suffix(']'));
            let index = digits.and_then(|digits| digits.trim().parse().ok());
            steps.push(PathPart::Element(index.ok_or_else(|| format!("The path `{path}` has a wrong index."))?));
        }
    }
    if steps.len() > MAX_STEPS {
        return Err(format!("A path has at most {MAX_STEPS} steps, not {}.", steps.len()));
    }
    Ok(steps)
}

/// Whether a name needs no placeholder. (DynamoDB wants one for its reserved words, too.)
fn is_plain(name: &str) -> bool {
    !name.starts_with(|c: char| c.is_ascii_digit()) && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
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
        assert_eq!(projected("#m.x, m.y"), Item::from([("m".to_owned(), item()["m"].clone())]));
        assert_eq!(projected("a, b, c, d, e, id"), Item::from([("id".to_owned(), text("a"))]));
    }

    #[test]
    fn path_is_refused_beyond_dynamodbs_depth() {
        let path = |steps: usize| vec!["a"; steps].join(".");
        assert!(Projection::parse(&path(MAX_STEPS), &HashMap::new()).is_ok());
        assert!(Projection::parse(&path(MAX_STEPS + 1), &HashMap::new()).is_err());
    }

    #[test]
    fn wrong_paths_are_refused() {
        for path in
            ["", "a..b", "#none", "a[", "a[x]", "a-b", "1a", "ä", "a,,b", "a, a", "a.b, a", "a, a.b", "a[0], a.b"]
        {
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
