//! DynamoDB's limits of expressions, checked before any parsing. Leasehold evaluates some expressions itself, and must
//! not work longer on one than DynamoDB would.

use std::collections::BTreeMap;

use leasehold_wire::Problem;
use leasehold_wire::transactions::{Entry, GetItemsRequest, Item, ListItemsRequest};

/// The maximum length of an expression, in bytes.
const MAX_EXPRESSION_BYTES: usize = 4096;
/// The maximum number of operators and functions in an expression.
const MAX_OPERATORS: usize = 300;
/// The maximum number of operands of one `IN`.
const MAX_OPERANDS: usize = 100;
/// The maximum number of placeholders of each kind: no more fit into an expression of the maximum length.
const MAX_PLACEHOLDERS: usize = MAX_EXPRESSION_BYTES / 3;
/// The maximum length of an attribute name behind a placeholder.
const MAX_NAME_BYTES: usize = 65_535;
/// The maximum sum of the sizes of names and values.
const MAX_SUBSTITUTION_BYTES: usize = 2 * 1024 * 1024;

const KEYWORDS: [&str; 5] = ["AND", "OR", "NOT", "BETWEEN", "IN"];

type Names = BTreeMap<String, String>;

pub(super) fn check_entries(entries: &[Entry]) -> Result<(), Problem> {
    entries.iter().enumerate().try_for_each(|(index, entry)| check_entry(index, entry))
}

fn check_entry(index: usize, entry: &Entry) -> Result<(), Problem> {
    let place = format!("requests[{index}].{}.", entry.name());
    match entry {
        Entry::Get(get) => check(
            &place,
            &get.expression_attribute_names,
            None,
            [("ProjectionExpression", get.projection_expression.as_deref())],
        ),
        Entry::Put(put) => check(
            &place,
            &put.expression_attribute_names,
            Some(&put.expression_attribute_values),
            [("ConditionExpression", put.condition_expression.as_deref())],
        ),
        Entry::Update(update) => check(
            &place,
            &update.expression_attribute_names,
            Some(&update.expression_attribute_values),
            [
                ("UpdateExpression", Some(update.update_expression.as_str())),
                ("ConditionExpression", update.condition_expression.as_deref()),
            ],
        ),
        Entry::Delete(delete) => check(
            &place,
            &delete.expression_attribute_names,
            Some(&delete.expression_attribute_values),
            [("ConditionExpression", delete.condition_expression.as_deref())],
        ),
        Entry::ConditionCheck(checked) => check(
            &place,
            &checked.expression_attribute_names,
            Some(&checked.expression_attribute_values),
            [("ConditionExpression", Some(checked.condition_expression.as_str()))],
        ),
        Entry::Query(query) => check(
            &place,
            &query.expression_attribute_names,
            Some(&query.expression_attribute_values),
            [
                ("KeyConditionExpression", Some(query.key_condition_expression.as_str())),
                ("ProjectionExpression", query.projection_expression.as_deref()),
            ],
        ),
    }
}

pub(super) fn check_reads(request: &GetItemsRequest) -> Result<(), Problem> {
    let empty = Names::new();
    let names = request.expression_attribute_names.as_ref().unwrap_or(&empty);
    check_camel("", names, None, [("projectionExpression", request.projection_expression.as_deref())])?;
    request.requests.iter().flatten().enumerate().try_for_each(|(index, item)| {
        let place = format!("requests[{index}].");
        let expressions = [("projectionExpression", item.projection_expression.as_deref())];
        check_camel(&place, &item.expression_attribute_names, None, expressions)
    })
}

pub(super) fn check_list(request: &ListItemsRequest) -> Result<(), Problem> {
    let expressions = [
        ("keyConditionExpression", request.key_condition_expression.as_deref()),
        ("filterExpression", request.filter_expression.as_deref()),
        ("projectionExpression", request.projection_expression.as_deref()),
    ];
    check_camel("", &request.expression_attribute_names, Some(&request.expression_attribute_values), expressions)
}

fn check<const N: usize>(
    place: &str,
    names: &Names,
    values: Option<&Item>,
    expressions: [(&str, Option<&str>); N],
) -> Result<(), Problem> {
    check_placeholders(&format!("{place}ExpressionAttribute"), ["Names", "Values"], names, values)?;
    check_expressions(place, expressions)
}

fn check_camel<const N: usize>(
    place: &str,
    names: &Names,
    values: Option<&Item>,
    expressions: [(&str, Option<&str>); N],
) -> Result<(), Problem> {
    check_placeholders(&format!("{place}expressionAttribute"), ["Names", "Values"], names, values)?;
    check_expressions(place, expressions)
}

fn check_placeholders(place: &str, kinds: [&str; 2], names: &Names, values: Option<&Item>) -> Result<(), Problem> {
    for (kind, count) in kinds.into_iter().zip([names.len(), values.map_or(0, |values| values.0.len())]) {
        if count > MAX_PLACEHOLDERS {
            let detail =
                format!("There are {count} placeholders; {MAX_PLACEHOLDERS} are the most that an expression can use.");
            return Err(Problem::invalid(format!("{place}{kind}"), detail));
        }
    }
    if names.values().any(|name| name.len() > MAX_NAME_BYTES) {
        let detail = format!("An attribute name may have at most {MAX_NAME_BYTES} bytes.");
        return Err(Problem::invalid(format!("{place}{}", kinds[0]), detail));
    }
    let bytes: usize = names.iter().map(|(placeholder, name)| placeholder.len() + name.len()).sum();
    if bytes > MAX_SUBSTITUTION_BYTES {
        let detail = format!("All placeholders together may stand for at most {MAX_SUBSTITUTION_BYTES} bytes.");
        return Err(Problem::invalid(format!("{place}{}", kinds[0]), detail));
    }
    Ok(())
}

fn check_expressions<const N: usize>(place: &str, expressions: [(&str, Option<&str>); N]) -> Result<(), Problem> {
    for (name, expression) in expressions {
        let Some(expression) = expression else { continue };
        check_expression(expression).map_err(|detail| Problem::invalid(format!("{place}{name}"), detail))?;
    }
    Ok(())
}

fn check_expression(expression: &str) -> Result<(), String> {
    let bytes = expression.len();
    if bytes > MAX_EXPRESSION_BYTES {
        return Err(format!("An expression may have at most {MAX_EXPRESSION_BYTES} bytes, not {bytes}."));
    }
    let operators = operators(expression);
    if operators > MAX_OPERATORS {
        return Err(format!(
            "An expression may have at most {MAX_OPERATORS} operators and functions, not {operators}."
        ));
    }
    if most_operands(expression) > MAX_OPERANDS {
        return Err(format!("An IN may have at most {MAX_OPERANDS} operands."));
    }
    Ok(())
}

/// Counts operators and function calls. A path contains no `-`, since a name with one needs a placeholder.
fn operators(expression: &str) -> usize {
    let words = expression.split(|character: char| !(character.is_alphanumeric() || "_#:".contains(character)));
    let keywords = words.filter(|word| KEYWORDS.iter().any(|keyword| keyword.eq_ignore_ascii_case(word))).count();
    let signs = expression.chars().filter(|character| "+-".contains(*character)).count();
    let comparators = expression
        .split(|character: char| !"<>=".contains(character))
        .filter(|comparator| !comparator.is_empty() && *comparator != "=")
        .count();
    let bytes = expression.as_bytes();
    let calls = (1..bytes.len()).filter(|&at| bytes[at] == b'(' && bytes[at - 1].is_ascii_alphanumeric()).count();
    keywords + signs + comparators + calls
}

/// Counts the operands in the longest list in parentheses.
fn most_operands(expression: &str) -> usize {
    expression
        .split('(')
        .skip(1)
        .map(|list| list.split(')').next().unwrap_or_default().split(',').count())
        .max()
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expression_is_refused_at_dynamodbs_limits() {
        let longest = "a".repeat(MAX_EXPRESSION_BYTES);
        let added = |count: usize| format!("SET a = {}", vec!["b"; count + 1].join("+"));
        let listed = |count: usize| format!("a IN ({})", vec![":v"; count].join(","));
        for (expression, allowed) in [
            (longest.clone(), true),
            (longest + "a", false),
            (added(MAX_OPERATORS), true),
            (added(MAX_OPERATORS + 1), false),
            (listed(MAX_OPERANDS), true),
            (listed(MAX_OPERANDS + 1), false),
            (vec!["size(a) > b"; 150].join(","), true),
            (vec!["size(a) > b"; 151].join(","), false),
            (vec!["#a"; 1000].join(", "), true),
        ] {
            assert_eq!(check_expression(&expression).is_ok(), allowed, "{} {expression}", expression.len());
        }
    }

    #[test]
    fn placeholders_are_counted() {
        let names = |count: usize| (0..count).map(|index| (format!("#{index}"), "a".to_owned())).collect::<Names>();
        assert!(check("", &names(MAX_PLACEHOLDERS), None, []).is_ok());
        let problem = check("requests[0].Get.", &names(MAX_PLACEHOLDERS + 1), None, []).expect_err("too many");
        assert_eq!(problem.field.as_deref(), Some("requests[0].Get.ExpressionAttributeNames"));
    }
}
