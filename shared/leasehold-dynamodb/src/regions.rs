//! The regions of a table, and whether its locks hold in all of them.

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::types::{MultiRegionConsistency, TableDescription};

use crate::Failure;

/// The version of global tables whose description does not list the replicas. It has no strong consistency.
const VERSION_WITHOUT_REPLICAS: &str = "2017.11.29";

/// The regions of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Regions {
    /// The table is in one region.
    One,
    /// A write in one region is seen by every later write in the others.
    Strong,
    /// A write in one region reaches the others later, and of two writes one is lost.
    Eventual,
}

impl Regions {
    /// Reads the regions from a table's description.
    pub fn of(table: &TableDescription) -> Self {
        let is_global = !table.replicas().is_empty() || table.global_table_version() == Some(VERSION_WITHOUT_REPLICAS);
        match table.multi_region_consistency() {
            Some(MultiRegionConsistency::Strong) => Self::Strong,
            _ if is_global => Self::Eventual,
            _ => Self::One,
        }
    }

    /// Checks that locks in the table hold in all its regions, and that the service is set up for them.
    ///
    /// # Errors
    /// A sentence about the table, and the remedy.
    pub fn check(self, table_name: &str, is_multi_region: bool) -> Result<(), Failure> {
        match self {
            Self::Eventual => Err(Failure::misconfigured(format!(
                "The table {table_name} is a global table with eventual consistency. Two regions would grant the same \
                 lock at the same time, and fencing tokens would fall. Use a global table with strong consistency \
                 (MultiRegionConsistency STRONG), or a table in one region."
            ))),
            Self::Strong if !is_multi_region => Err(Failure::misconfigured(format!(
                "The table {table_name} is in several regions, where DynamoDB has no transactions and no TTL. Set \
                 LEASEHOLD_MULTI_REGION to true, with which the service needs neither."
            ))),
            Self::One | Self::Strong => Ok(()),
        }
    }
}

/// Looks at the regions of a table, where it is there.
///
/// # Errors
/// `NoTable`, `AccessDenied` without `dynamodb:DescribeTable`, `Throttled`, `Unavailable`.
pub async fn regions(client: &Client, table_name: &str) -> Result<Regions, Failure> {
    let output = client.describe_table().table_name(table_name).send().await?;
    Ok(output.table.as_ref().map_or(Regions::One, Regions::of))
}

#[cfg(test)]
mod tests {
    use aws_sdk_dynamodb::types::ReplicaDescription;

    use super::*;

    fn table(replicas: usize, consistency: Option<&str>, version: Option<&str>) -> Regions {
        let replicas = vec![ReplicaDescription::builder().region_name("us-east-2").build(); replicas];
        let table = TableDescription::builder()
            .set_replicas(Some(replicas))
            .set_multi_region_consistency(consistency.map(MultiRegionConsistency::from))
            .set_global_table_version(version.map(str::to_owned));
        Regions::of(&table.build())
    }

    #[test]
    fn replicas_are_eventual_unless_they_are_strong() {
        let version = Some("2019.11.21");
        assert_eq!(table(0, None, None), Regions::One);
        assert_eq!(table(0, None, version), Regions::One);
        assert_eq!(table(2, Some("STRONG"), version), Regions::Strong);
        // A table with a witness may have one replica beside it, and none of its own in the list.
        assert_eq!(table(0, Some("STRONG"), version), Regions::Strong);
        for (replicas, consistency, version) in [
            (2, Some("EVENTUAL"), version),
            (1, None, version),
            (1, Some("ANOTHER"), version),
            (0, None, Some(VERSION_WITHOUT_REPLICAS)),
        ] {
            assert_eq!(table(replicas, consistency, version), Regions::Eventual, "{replicas} {consistency:?}");
        }
    }

    #[test]
    fn table_of_two_minds_is_refused_with_a_remedy() {
        for is_multi_region in [false, true] {
            let refused = Regions::Eventual.check("locks", is_multi_region).expect_err("refused").to_string();
            assert!(refused.contains("grant the same lock") && refused.contains("STRONG"), "{refused}");
            assert!(Regions::One.check("locks", is_multi_region).is_ok());
        }
        let refused = Regions::Strong.check("locks", false).expect_err("refused").to_string();
        assert!(refused.contains("LEASEHOLD_MULTI_REGION"), "{refused}");
        assert!(Regions::Strong.check("locks", true).is_ok());
    }
}
