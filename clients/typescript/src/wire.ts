// Made by `npm run wire` from docs/openapi.json.

export interface components {
    schemas: {
        /** @description A request for several keys, locks and permits of semaphores, all or none. */
        AcquireAllRequest: {
            /** @description The keys: 2 to 50, each once. */
            keys: components["schemas"]["WantedLock"][];
            /**
             * Format: int64
             * @description The lease, in milliseconds: the time in which observers must see no heartbeat before they may take over.
             * @default 20000
             */
            leaseDurationMs?: number | null;
            leaseId?: components["schemas"]["Secret"] | null;
            /** @description The owner, for people to read: 1 to 1024 bytes; 128 at most where one of the keys is a semaphore's. */
            ownerName: string;
            /**
             * @description Tells this request from another one of the same number, where several processes share one lease id: at most 64
             *     bytes. A repeat keeps it. Only with `sequence`.
             */
            requestId?: string | null;
            /**
             * Format: int64
             * @description The number of this request under its lease id. The holder raises it with each new request; a repeat keeps it.
             */
            sequence?: number | null;
            staleness?: components["schemas"]["Staleness"] | null;
        };
        /** @description All keys were granted. */
        AcquireAllResponse: {
            /**
             * Format: int64
             * @description The fencing token of all keys, above every token granted for any of them before.
             */
            fencingToken: number;
            /**
             * Format: int64
             * @description The lease, in milliseconds. The holder counts it from before it sent the request.
             */
            leaseDurationMs: number;
            /**
             * @description The secret that proves possession of each key. Heartbeats and releases name one key each: those of permits by
             *     the operations of semaphores.
             */
            leaseId: components["schemas"]["Secret"];
            /** @description The keys, in the order of the request. */
            locks: components["schemas"]["GrantedLock"][];
            /** @description The owner, for people to read. */
            ownerName: string;
        };
        /**
         * @description The outcome of an acquisition.
         * @enum {string}
         */
        AcquireOutcome: "created" | "reacquired" | "takenOver" | "renewed";
        /** @description A request for permits. */
        AcquirePermitsRequest: {
            /**
             * Format: int64
             * @description The number of permits of a new semaphore. An existing semaphore keeps its capacity, which the answer shows.
             */
            capacity: number;
            /** @description A payload of this holder, as text, for everyone to read: at most 256 bytes. */
            data?: string | null;
            /** @description The payload as base64. */
            dataBase64?: string | null;
            /**
             * @description The `epoch` of the answer that the caller saw last before this lease id had permits or a ticket. A request with
             *     an epoch that more than 16 grants or tickets followed is refused as `held`, and so is every late copy of it.
             *     Beside `number`: the `epoch` of the view that showed the ticket's turn. The request is granted by one write, if
             *     no turn has ended since.
             */
            epoch?: string | null;
            /** @description The semaphore's key: 1 to 2048 bytes of UTF-8. */
            key: string;
            /**
             * Format: int64
             * @description The lease, in milliseconds: the time in which observers must see no heartbeat of this holder before they may
             *     take its permits.
             * @default 60000
             */
            leaseDurationMs?: number | null;
            leaseId?: components["schemas"]["Secret"] | null;
            /**
             * Format: int64
             * @description The number of the caller's ticket, for a caller that waited in the queue. Without this ticket in the queue, the
             *     request is refused as `lost`, with the reason `not-queued`.
             */
            number?: number | null;
            /**
             * @description Dead holders and tickets, at most ten. The caller saw each with the same version for its own lease. The request
             *     is granted only if all of them are unchanged, and then removes them.
             */
            observed?: components["schemas"]["ObservedEntry"][];
            /** @description The owner, for people to read: 1 to 128 bytes. */
            ownerName: string;
            /**
             * @description Whether the caller passes tickets ahead that are dead, or that have left permits which they could take. Needs
             *     `number`, and the `epoch` of the view that shows so: after another grant the request is refused.
             */
            passes?: boolean;
            /**
             * Format: int64
             * @description The number of permits. Default: 1.
             * @default 1
             */
            permits?: number | null;
            /** @description Tells this request from another one of the same number: at most 64 bytes. Only with `sequence`. */
            requestId?: string | null;
            /**
             * Format: int64
             * @description The number of this request under its lease id. The holder raises it with each new request; a repeat keeps it. A
             *     holder's acquire with a higher number renews its lease. Without a number, a holder's acquire gets the same
             *     answer again, and renews nothing.
             */
            sequence?: number | null;
            /** @description The semaphore's sort key: 1 to 1024 bytes. Required on a table with a sort key, refused on one without. */
            sortKey?: string | null;
            staleness?: components["schemas"]["Staleness"] | null;
        };
        /** @description Permits were granted. */
        AcquirePermitsResponse: {
            /**
             * Format: int64
             * @description The capacity of the semaphore.
             */
            capacity: number;
            /** @description The age of the semaphore, for the caller's next request under a fresh lease id. */
            epoch?: string;
            /**
             * Format: int64
             * @description The fencing token, above every token granted for this key before.
             */
            fencingToken: number;
            /** @description The holder's public name, which proves nothing. */
            holderId: string;
            /** @description The semaphore's key. */
            key: string;
            /**
             * Format: int64
             * @description The lease, in milliseconds. The holder counts it from before it first sent the request.
             */
            leaseDurationMs: number;
            /** @description The secret that proves possession. */
            leaseId: components["schemas"]["Secret"];
            /**
             * @description The outcome: `created` with the semaphore, `reacquired` from the free permits, `takenOver` with those of the
             *     dead, or `renewed`.
             */
            outcome: components["schemas"]["AcquireOutcome"];
            /** @description The owner, for people to read. */
            ownerName: string;
            /**
             * Format: int64
             * @description The number of the holder's permits.
             */
            permits: number;
            /** @description The sort key, on a table that has one. */
            sortKey?: string | null;
            /**
             * Format: uuid
             * @description The version, which changes with every heartbeat of this holder.
             */
            version: string;
        };
        /** @description Acquires a lock. */
        AcquireRequest: {
            /**
             * @description If true, the occurrence counts as completed from the acquisition on: a failed run is not tried again. Only with
             *     `occurrence`. Default: false.
             */
            atMostOnce?: boolean | null;
            /** @description Additional attributes of the row, as plain JSON: at most 50. The lock's own names are refused. */
            attributes?: Record<string, unknown> | null;
            /** @description The payload, as text. Without `data` and `dataBase64`, the row's payload stays. */
            data?: string | null;
            /** @description The payload, as base64: at most 256 KiB when decoded. */
            dataBase64?: string | null;
            /** @description The lock's key: 1 to 2048 bytes of UTF-8. */
            key: string;
            /**
             * Format: int64
             * @description The lease, in milliseconds: the time in which observers must see no heartbeat before they may take over.
             * @default 20000
             */
            leaseDurationMs?: number | null;
            leaseId?: components["schemas"]["Secret"] | null;
            /**
             * @description The record version number that this caller has seen unchanged for at least the record's own lease, by its own
             *     monotonic clock. The request takes over a lock that still has it.
             */
            observedRecordVersionNumber?: string | null;
            /**
             * @description The occurrence of a recurring job that this acquisition runs, such as `2026-11-21T02`: 1 to 1024 bytes, compared
             *     byte for byte. Refused as `already-done` if it, or a later one, was completed.
             */
            occurrence?: string | null;
            /** @description If true, the row must exist. Default: false. */
            onlyIfExists?: boolean | null;
            /** @description The owner, for people to read: 1 to 1024 bytes. */
            ownerName: string;
            /** @description If false, the payload is stored only if the row has none. Default: true. */
            replaceData?: boolean | null;
            /**
             * @description Tells this request from another one of the same number, where several processes share one lease id: at most 64
             *     bytes. A repeat keeps it. Only with `sequence`.
             */
            requestId?: string | null;
            /**
             * Format: int64
             * @description The number of this request under its lease id. The holder raises it with each new request; a repeat keeps it.
             *     With it, a request that the network delivers late or twice changes nothing.
             */
            sequence?: number | null;
            /** @description The lock's sort key: 1 to 1024 bytes. Required on a table with a sort key, refused on one without. */
            sortKey?: string | null;
            staleness?: components["schemas"]["Staleness"] | null;
        };
        /** @description A lock was granted. */
        AcquireResponse: {
            /** @description The row's payload as text: the predecessor's, or the one that was just stored. */
            data?: string | null;
            /** @description The row's payload as base64, if it is not UTF-8. */
            dataBase64?: string | null;
            /**
             * Format: int64
             * @description The fencing token, above every token granted for this key before. Hand it to the resource that the lock
             *     protects.
             */
            fencingToken: number;
            /** @description The lock's key. */
            key: string;
            /**
             * Format: int64
             * @description The lease, in milliseconds. The holder counts it from before it sent the request.
             */
            leaseDurationMs: number;
            /** @description The secret that proves possession. */
            leaseId: components["schemas"]["Secret"];
            /** @description The outcome of the acquisition. */
            outcome: components["schemas"]["AcquireOutcome"];
            /** @description The owner, for people to read. */
            ownerName: string;
            /** @description The previous owner. */
            previousOwnerName?: string | null;
            /**
             * Format: uuid
             * @description The record version number, which changes with every acquire and heartbeat.
             */
            recordVersionNumber: string;
            /** @description The sort key, on a table that has one. */
            sortKey?: string | null;
        };
        /** @description Adds requests to a transaction: locks their items, and applies the requests provisionally. */
        AddRequest: {
            /**
             * @description A name for this call, such as a counter. A repeat of the call has the same name: what the transaction has from
             *     the call is answered, and not carried out again. A call without a name is a new one each time.
             */
            callId?: string | null;
            /** @description The requests to add: at most 1000. Without requests, the call keeps the transaction alive. */
            requests?: components["schemas"]["Entry"][];
            returnConsumedCapacity?: components["schemas"]["ReturnConsumedCapacity"] | null;
            /**
             * Format: uuid
             * @description The secret id of the transaction.
             */
            transactionId: string;
        };
        /** @description The requests are part of the transaction. */
        AddResponse: {
            /** @description The answers, in the order of the requests. */
            answers: components["schemas"]["Answer"][];
            /** @description The capacity units that the call consumed, by table, if it asked for them. */
            consumedCapacity?: components["schemas"]["ConsumedCapacity"][] | null;
            /**
             * Format: uuid
             * @description The secret id of the transaction.
             */
            transactionId: string;
        };
        /** @description The answer to one request. */
        Answer: {
            item?: components["schemas"]["Item"] | null;
            /** @description The items of a `Query`, in the order of the sort key. */
            items?: components["schemas"]["Item"][] | null;
        };
        /** @description An attribute's value, in DynamoDB JSON: an object with one member, which names the type. */
        AttributeValue: {
            /** @description A text. */
            S: string;
        } | {
            /** @description A number, as a text. */
            N: string;
        } | {
            /** @description Bytes, in base64. */
            B: string;
        } | {
            /** @description True or false. */
            BOOL: boolean;
        } | {
            /** @description Nothing; always true. */
            NULL: boolean;
        } | {
            /** @description A map. */
            M: components["schemas"]["Item"];
        } | {
            /** @description A list. */
            L: components["schemas"]["AttributeValue"][];
        } | {
            /** @description A set of texts, not empty. */
            SS: string[];
        } | {
            /** @description A set of numbers, as texts, not empty. */
            NS: string[];
        } | {
            /** @description A set of byte strings, in base64, not empty. */
            BS: string[];
        };
        /** @description Opens a transaction. With `requests`, adds them; with `commit`, commits the transaction as well. */
        BeginRequest: {
            /** @description If true, this call commits the transaction, and the requests are complete. Default: false. */
            commit?: boolean | null;
            /** @description The first requests: at most 1000. */
            requests?: components["schemas"]["Entry"][] | null;
            /**
             * Format: uuid
             * @description The `transactionId` of the attempt that this transaction replaces. A retry keeps the age of that attempt. When
             *     two transactions want the same item, the older one goes first.
             */
            retryOf?: string | null;
            returnConsumedCapacity?: components["schemas"]["ReturnConsumedCapacity"] | null;
            /**
             * Format: uuid
             * @description The secret id of the transaction, a UUID. A request with its own id can be repeated safely. The id gives the
             *     right to add, commit and roll back. Generated if absent.
             */
            transactionId?: string | null;
        };
        /** @description The transaction is open or committed. */
        BeginResponse: {
            /** @description The answers, in the order of the requests, if there were any. */
            answers?: components["schemas"]["Answer"][] | null;
            /** @description The capacity units that the call consumed, by table, if it asked for them. */
            consumedCapacity?: components["schemas"]["ConsumedCapacity"][] | null;
            /** @description `pending`, or `committed` after a `commit`. */
            state: components["schemas"]["TransactionState"];
            /**
             * Format: uuid
             * @description The secret id: the caller's own, or a generated one.
             */
            transactionId: string;
        };
        /** @description An operator's removal of a holder or a ticket. */
        BreakEntryRequest: {
            /** @description The `holderId`, or the `ticketId`. */
            holderId: string;
            /** @description The semaphore's key. */
            key: string;
            /**
             * Format: int64
             * @description The holder's `fencingToken`, or the ticket's `number`. Without it, the service makes a second write.
             */
            number?: number | null;
            /** @description The semaphore's sort key. Required on a table with a sort key, refused on one without. */
            sortKey?: string | null;
            /** @description The version that the operator saw. */
            version: string;
        };
        /** @description An operator's forced release. */
        BreakRequest: {
            /** @description The lock's key. */
            key: string;
            /** @description The record version number that the operator saw. */
            recordVersionNumber: string;
            /** @description The lock's sort key. Required on a table with a sort key, refused on one without. */
            sortKey?: string | null;
        };
        /** @description An operator's change of the capacity. */
        CapacityRequest: {
            /**
             * Format: int64
             * @description The new capacity. Holders keep their permits: after a cut, nothing is granted until enough permits are released.
             */
            capacity: number;
            /**
             * Format: int64
             * @description The capacity that the operator saw.
             */
            expected: number;
            /** @description The `capacityVersion` that the operator saw. With it, a late copy of the request changes nothing. */
            expectedVersion?: string | null;
            /** @description The semaphore's key. */
            key: string;
            /** @description Tells this request from others: at most 64 bytes. A repeat is answered, and not carried out again. */
            requestId?: string | null;
            /** @description The semaphore's sort key. Required on a table with a sort key, refused on one without. */
            sortKey?: string | null;
        };
        /** @description The capacity was changed. */
        CapacityResponse: {
            /**
             * Format: int64
             * @description The number of free permits.
             */
            available: number;
            /**
             * Format: int64
             * @description The number of permits.
             */
            capacity: number;
        };
        /** @description The transaction to commit, and what the caller knows about it. */
        CommitRequest: {
            /**
             * Format: int64
             * @description The number of distinct items of the transaction, those of `Get` and those that a `Query` locked included. An
             *     open transaction with another number is not committed: an `add` that was not answered is missing, or was carried
             *     out.
             */
            expectedItems?: number | null;
            /**
             * Format: int64
             * @description The number of requests other than `Get` and `Query` that the caller made, repeats of a call not counted. An open
             *     transaction with fewer is not committed. Other callers may have made more.
             */
            expectedWrites?: number | null;
            returnConsumedCapacity?: components["schemas"]["ReturnConsumedCapacity"] | null;
            /**
             * Format: uuid
             * @description The secret id of the transaction.
             */
            transactionId: string;
        };
        /** @description The transaction is committed. */
        CommitResponse: {
            /** @description The capacity units that the call consumed, by table, if it asked for them. */
            consumedCapacity?: components["schemas"]["ConsumedCapacity"][] | null;
            /**
             * @description The items that a writer past the protocol deleted or replaced while the transaction held them. The commit is of
             *     the other items.
             */
            overwritten?: components["schemas"]["ItemName"][];
            /** @description `committed`. */
            state: components["schemas"]["TransactionState"];
            /**
             * Format: uuid
             * @description The secret id of the transaction.
             */
            transactionId: string;
        };
        /** @description Locks the item and checks a condition. */
        ConditionCheck: {
            /** @description A condition that must hold for the item until the end of the transaction. */
            ConditionExpression: string;
            /** @description The `#names` of the expression. */
            ExpressionAttributeNames?: {
                [key: string]: string;
            };
            /** @description The `:values` of the expression. */
            ExpressionAttributeValues?: components["schemas"]["Item"];
            /** @description The item's key. */
            Key: components["schemas"]["Item"];
            /** @description Whether the problem `condition-failed` shows the item. */
            ReturnValuesOnConditionCheckFailure?: components["schemas"]["ReturnOnFailure"];
            /** @description The table's name, not an ARN. */
            TableName: string;
        };
        /**
         * @description The capacity units of one table and its indexes, in the sense of DynamoDB, for all requests that the service made
         *     until it answered. DynamoDB tells nothing about requests that it refuses.
         */
        ConsumedCapacity: {
            /**
             * Format: double
             * @description The read units: multiples of one half.
             */
            readCapacityUnits: number;
            /** @description The table's name. */
            tableName: string;
            /**
             * Format: double
             * @description The write units.
             */
            writeCapacityUnits: number;
        };
        /** @description Deletes the item, when the transaction is committed. */
        Delete: {
            /** @description A condition that must hold for the item as it was when the transaction locked it. */
            ConditionExpression?: string | null;
            /** @description The `#names` of the expression. */
            ExpressionAttributeNames?: {
                [key: string]: string;
            };
            /** @description The `:values` of the expression. */
            ExpressionAttributeValues?: components["schemas"]["Item"];
            /** @description The item's key. */
            Key: components["schemas"]["Item"];
            /** @description The state of the item to return: `NONE` or `ALL_OLD`. */
            ReturnValues?: components["schemas"]["ReturnValues"];
            /** @description Whether the problem `condition-failed` shows the item. */
            ReturnValuesOnConditionCheckFailure?: components["schemas"]["ReturnOnFailure"];
            /** @description The table's name, not an ARN. */
            TableName: string;
        };
        /** @description The transaction to end. */
        EndRequest: {
            returnConsumedCapacity?: components["schemas"]["ReturnConsumedCapacity"] | null;
            /**
             * Format: uuid
             * @description The secret id of the transaction.
             */
            transactionId: string;
        };
        /** @description The transaction is rolled back. */
        EndResponse: {
            /** @description The capacity units that the call consumed, by table, if it asked for them. */
            consumedCapacity?: components["schemas"]["ConsumedCapacity"][] | null;
            /** @description `rolled-back`. */
            state: components["schemas"]["TransactionState"];
            /**
             * Format: uuid
             * @description The secret id of the transaction.
             */
            transactionId: string;
        };
        /** @description The answer to an enqueue: a place in the queue, or the permits, where they were free and nobody waited. */
        EnqueueAnswer: components["schemas"]["AcquirePermitsResponse"] | components["schemas"]["EnqueueResponse"];
        /** @description A request for a place in the queue, or its refresh. */
        EnqueueRequest: {
            /**
             * Format: int64
             * @description The number of permits of a new semaphore. An existing semaphore keeps its capacity.
             */
            capacity: number;
            /** @description A payload of the holder, as text, where the permits are granted at once: at most 256 bytes. */
            data?: string | null;
            /** @description The payload as base64. */
            dataBase64?: string | null;
            /**
             * @description The `epoch` of the answer that the caller saw last before this lease id had permits or a ticket. A request with
             *     an epoch that more than 16 grants or tickets followed is refused as `held`, and so is every late copy of it.
             */
            epoch?: string | null;
            /**
             * Format: int64
             * @description The lease of the permits, where they are free and nobody waits: the answer is then that of an acquire.
             * @default 60000
             */
            grantLeaseDurationMs?: number | null;
            /** @description The semaphore's key. */
            key: string;
            /**
             * Format: int64
             * @description The time in which others must see no refresh of the ticket before they may pass it, in milliseconds.
             * @default 120000
             */
            leaseDurationMs?: number | null;
            /** @description The secret under which the permits will be acquired. */
            leaseId: components["schemas"]["Secret"];
            /**
             * Format: int64
             * @description The number of the ticket, for a refresh. Without this ticket in the queue, the request is refused as `lost`,
             *     with the reason `not-queued`.
             */
            number?: number | null;
            /**
             * @description Dead holders and tickets: each was seen by the caller with the same version for its own lease. At most ten. The
             *     request is carried out only if all of them are as they were seen, and then removes them.
             */
            observed?: components["schemas"]["ObservedEntry"][];
            /** @description The waiter, for people to read: 1 to 128 bytes. */
            ownerName: string;
            /**
             * Format: int64
             * @description The number of permits that the ticket waits for. Default: 1.
             * @default 1
             */
            permits?: number | null;
            /** @description Tells this request from another one of the same number: at most 64 bytes. Only with `sequence`. */
            requestId?: string | null;
            /**
             * Format: int64
             * @description The number of this request under its lease id.
             */
            sequence?: number | null;
            /** @description The semaphore's sort key. Required on a table with a sort key, refused on one without. */
            sortKey?: string | null;
        };
        /** @description A place in the queue. */
        EnqueueResponse: {
            /**
             * Format: int64
             * @description The number of tickets before this one, dead ones among them.
             */
            ahead: number;
            /** @description The age of the semaphore. */
            epoch?: string;
            /**
             * Format: int64
             * @description The ticket's place: lower numbers go first.
             */
            number: number;
            /** @description The ticket's public name, which proves nothing. */
            ticketId: string;
            /**
             * Format: uuid
             * @description The version, which changes with every refresh.
             */
            version: string;
        };
        /** @description One operation on one item, an entry of TransactWriteItems or TransactGetItems; or a Query. */
        Entry: {
            /** @description Locks the item and reads it. */
            Get: components["schemas"]["Get"];
        } | {
            /** @description Puts an item in place of the existing one. */
            Put: components["schemas"]["Put"];
        } | {
            /** @description Updates or creates the item. */
            Update: components["schemas"]["Update"];
        } | {
            /** @description Deletes the item, when the transaction is committed. */
            Delete: components["schemas"]["Delete"];
        } | {
            /** @description Locks the item and checks a condition. */
            ConditionCheck: components["schemas"]["ConditionCheck"];
        } | {
            /** @description Locks the items that match a key condition and reads them. It goes into an add of its own. */
            Query: components["schemas"]["Query"];
        };
        /** @description Locks the item and reads it. */
        Get: {
            /** @description The `#names` of the expression. */
            ExpressionAttributeNames?: {
                [key: string]: string;
            };
            /** @description The item's key. */
            Key: components["schemas"]["Item"];
            /** @description The paths to return. Default: all. */
            ProjectionExpression?: string | null;
            /** @description The table's name, not an ARN. */
            TableName: string;
        };
        /** @description The items to read: one, by `tableName` and `key`, or several, by `requests`. */
        GetItemsRequest: {
            /** @description One item: the `#names` of the expression. */
            expressionAttributeNames?: {
                [key: string]: string;
            } | null;
            isolation?: components["schemas"]["Isolation"] | null;
            key?: components["schemas"]["Item"] | null;
            /** @description One item: the paths to return. Default: all. */
            projectionExpression?: string | null;
            /**
             * @description Several items: at most 100, each once. Each read is strongly consistent. Only a transaction reads them all at
             *     one moment.
             */
            requests?: components["schemas"]["ItemRequest"][] | null;
            returnConsumedCapacity?: components["schemas"]["ReturnConsumedCapacity"] | null;
            /** @description One item: the table's name. */
            tableName?: string | null;
        };
        /** @description The items. */
        GetItemsResponse: {
            /** @description The answers for several items, in the order of the requests. */
            answers?: components["schemas"]["Answer"][] | null;
            /** @description The capacity units that the call consumed, by table, if it asked for them. */
            consumedCapacity?: components["schemas"]["ConsumedCapacity"][] | null;
            item?: components["schemas"]["Item"] | null;
        };
        /** @description One of several keys that were granted. */
        GrantedLock: {
            /** @description The public name of the holder of permits, which proves nothing. */
            holderId?: string | null;
            /** @description The key. */
            key: string;
            /**
             * Format: int64
             * @description The number of permits of a semaphore.
             */
            permits?: number | null;
            /**
             * Format: uuid
             * @description The record version number, which changes with every acquire and heartbeat. Of permits, the holder's version.
             */
            recordVersionNumber: string;
            /** @description The sort key, on a table that has one. */
            sortKey?: string | null;
        };
        /** @description A holder's renewal. */
        HeartbeatPermitsRequest: {
            /** @description A new payload, as text: at most 256 bytes. */
            data?: string | null;
            /** @description A new payload, as base64. */
            dataBase64?: string | null;
            /**
             * Format: int64
             * @description The token of the grant. A holder with another token is refused as `lost`.
             */
            fencingToken?: number | null;
            /**
             * Format: int64
             * @description Renews only if the holder has this number of permits. Only with `permits`.
             */
            heldPermits?: number | null;
            /** @description The semaphore's key. */
            key: string;
            /**
             * Format: int64
             * @description A new lease, in milliseconds. If absent, the old one stays.
             */
            leaseDurationMs?: number | null;
            /** @description The lease id, which proves possession. */
            leaseId: components["schemas"]["Secret"];
            /**
             * Format: int64
             * @description The number of permits to keep. Needs `heldPermits`, and is at most that number: there is no upgrade.
             */
            permits?: number | null;
            /** @description Tells this request from another one of the same number: at most 64 bytes. Only with `sequence`. */
            requestId?: string | null;
            /**
             * Format: int64
             * @description The number of this request under its lease id.
             */
            sequence?: number | null;
            /** @description The semaphore's sort key. Required on a table with a sort key, refused on one without. */
            sortKey?: string | null;
            /** @description Renews only if the holder still has this version. */
            version?: string | null;
        };
        /** @description A holder's lease starts anew. */
        HeartbeatPermitsResponse: {
            /**
             * Format: int64
             * @description The fencing token of the grant.
             */
            fencingToken: number;
            /** @description The holder's public name. */
            holderId: string;
            /**
             * Format: int64
             * @description The lease, in milliseconds. The holder counts it from before it sent the request.
             */
            leaseDurationMs: number;
            /**
             * Format: int64
             * @description The number of the holder's permits.
             */
            permits: number;
            /**
             * Format: uuid
             * @description The holder's new version.
             */
            version: string;
        };
        /** @description A holder's renewal. */
        HeartbeatRequest: {
            /** @description A new payload, as text. */
            data?: string | null;
            /** @description A new payload, as base64. */
            dataBase64?: string | null;
            /** @description If true, the payload is removed. Default: false. */
            deleteData?: boolean | null;
            /**
             * Format: int64
             * @description The fencing token of the grant. The heartbeat is `lost` if the lock has another one. A copy that arrives after
             *     its lease id was forgotten, and granted again, therefore changes nothing.
             */
            fencingToken?: number | null;
            /** @description The lock's key. */
            key: string;
            /**
             * Format: int64
             * @description A new lease, in milliseconds. If absent, the row's stays.
             */
            leaseDurationMs?: number | null;
            /** @description The lease id, which proves possession. */
            leaseId: components["schemas"]["Secret"];
            /**
             * @description Renews only if the row still has this record version number. After a time-out, repeat without it: the first try
             *     may have been applied and have changed the number.
             */
            recordVersionNumber?: string | null;
            /**
             * @description Tells this request from another one of the same number, where several processes share one lease id: at most 64
             *     bytes. A repeat keeps it. Only with `sequence`.
             */
            requestId?: string | null;
            /**
             * Format: int64
             * @description The number of this request under its lease id. The holder raises it with each new request; a repeat keeps it.
             *     With it, a request that the network delivers late or twice changes nothing.
             */
            sequence?: number | null;
            /** @description The lock's sort key. Required on a table with a sort key, refused on one without. */
            sortKey?: string | null;
        };
        /** @description The lease starts anew. */
        HeartbeatResponse: {
            /**
             * Format: int64
             * @description The fencing token: as granted, or higher if an acquire was repeated.
             */
            fencingToken: number;
            /**
             * Format: int64
             * @description The lease, in milliseconds. The holder counts it from before it sent the request.
             */
            leaseDurationMs: number;
            /**
             * Format: uuid
             * @description The new record version number.
             */
            recordVersionNumber: string;
            /** @description True if somebody waits for the lock, by a mark of `want`. A holder may release the lock earlier than planned. */
            wanted?: boolean;
        };
        /** @description One event in the life of a lock. */
        HistoryEntry: {
            /**
             * Format: int64
             * @description The time of the change, in epoch milliseconds. That of DynamoDB's stream is exact to the second.
             */
            atMs: number;
            /** @description What happened. */
            event: components["schemas"]["HistoryEvent"];
            /**
             * Format: int64
             * @description Its fencing token. Absent where another client wrote the row.
             */
            fencingToken?: number | null;
            /** @description The occurrence that the acquisition was for, or that the release completed. */
            occurrence?: string | null;
            /** @description The holder: the new one, or the one whose time ended. Absent where the row's owner was unreadable. */
            ownerName?: string | null;
            /**
             * Format: int64
             * @description Its fencing token.
             */
            previousFencingToken?: number | null;
            /** @description The holder that a takeover ended. */
            previousOwnerName?: string | null;
        };
        /**
         * @description What became of the holder of a lock.
         * @enum {string}
         */
        HistoryEvent: "acquired" | "renewed" | "takenOver" | "released" | "broken" | "expired" | "deleted";
        /** @description One page of a lock's history. */
        HistoryResponse: {
            /** @description The entries, from the newest on. A change is told some seconds after it was made. */
            entries: components["schemas"]["HistoryEntry"][];
            /** @description The start of the next page; absent on the last. */
            nextCursor?: string | null;
        };
        /** @description The public view of a holder of permits. */
        Holder: {
            /** @description The holder's payload as text. */
            data?: string | null;
            /** @description The holder's payload as base64, if it is not UTF-8. */
            dataBase64?: string | null;
            /**
             * Format: int64
             * @description The fencing token, above the tokens of all earlier holders.
             */
            fencingToken: number;
            /** @description The public name. */
            holderId: string;
            /**
             * Format: int64
             * @description The time for which the version must be seen unchanged before the holder is dead, in milliseconds.
             */
            leaseDurationMs: number;
            /** @description The owner, for people to read. */
            ownerName: string;
            /**
             * Format: int64
             * @description The number of the holder's permits.
             */
            permits: number;
            /** @description The version, which changes with every heartbeat of this holder. */
            version: string;
        };
        /**
         * @description The isolation level of a read outside of transactions. (A `Get` inside of a transaction is the third level.)
         * @enum {string}
         */
        Isolation: "committed" | "uncommitted";
        /** @description Attribute values by name: an item, a key, or the values of placeholders. */
        Item: {
            [key: string]: components["schemas"]["AttributeValue"];
        };
        /** @description The name of an item. */
        ItemName: {
            /** @description The item's key. */
            key: components["schemas"]["Item"];
            /** @description The table's name. */
            tableName: string;
        };
        /** @description An item to read. */
        ItemRequest: {
            /** @description The `#names` of the expression. */
            expressionAttributeNames?: {
                [key: string]: string;
            };
            /** @description The item's key. */
            key: components["schemas"]["Item"];
            /** @description The paths to return. Default: all. */
            projectionExpression?: string | null;
            /** @description The table's name, not an ARN. */
            tableName: string;
        };
        /**
         * @description The kind of a row that is not a lock.
         * @enum {string}
         */
        Kind: "semaphore";
        /**
         * @description The items to list: a Query with a `keyConditionExpression`, a Scan without.
         *
         *     Filter and limit apply to the items as they are. An item with an uncommitted change is found by its new content, and
         *     returned with its old one. An item that such a change moved out of the filter is missing.
         */
        ListItemsRequest: {
            exclusiveStartKey?: components["schemas"]["Item"] | null;
            /** @description The `#names` of the expressions. */
            expressionAttributeNames?: {
                [key: string]: string;
            };
            /** @description The `:values` of the expressions. */
            expressionAttributeValues?: components["schemas"]["Item"];
            /** @description A condition that the listed items fulfil. */
            filterExpression?: string | null;
            /** @description An index of the table, which must project all attributes. Default: the table itself. */
            indexName?: string | null;
            isolation?: components["schemas"]["Isolation"] | null;
            /** @description The key condition of a Query. Without it, the listing is a Scan. */
            keyConditionExpression?: string | null;
            /**
             * Format: int32
             * @description The largest number of items to examine. A page ends at 1 MB in any case.
             */
            limit?: number | null;
            /** @description The paths to return. Default: all. */
            projectionExpression?: string | null;
            returnConsumedCapacity?: components["schemas"]["ReturnConsumedCapacity"] | null;
            /** @description Whether the sort keys of a Query ascend. Default: true. */
            scanIndexForward?: boolean | null;
            /** @description The table's name, not an ARN. */
            tableName: string;
        };
        /** @description One page of items. */
        ListItemsResponse: {
            /** @description The capacity units that the call consumed, by table, if it asked for them. */
            consumedCapacity?: components["schemas"]["ConsumedCapacity"][] | null;
            /** @description The items. A page may have none, and still not be the last. */
            items: components["schemas"]["Item"][];
            lastEvaluatedKey?: components["schemas"]["Item"] | null;
        };
        /** @description One page of a listing. */
        ListResponse: {
            /** @description The locks that match. A page may have fewer than the limit, even none, and still not be the last. */
            locks: components["schemas"]["Lock"][];
            /** @description The start of the next page; absent on the last. */
            nextCursor?: string | null;
            /** @description Rows that are not readable lock records. */
            unreadable?: components["schemas"]["UnreadableRow"][];
        };
        /** @description The public view of a lock. */
        Lock: (components["schemas"]["SemaphoreState"] | Record<string, unknown>) & {
            /** @description Additional attributes, as plain JSON. Sets are lists, binary values base64. */
            attributes?: Record<string, unknown>;
            /** @description The payload as text. */
            data?: string | null;
            /** @description The payload as base64, if it is not UTF-8. */
            dataBase64?: string | null;
            /**
             * Format: int64
             * @description The fencing token. Absent if another kind of client wrote the row.
             */
            fencingToken?: number | null;
            /** @description The lock's key. */
            key: string;
            /** @description The last occurrence that was completed. */
            lastOccurrence?: string | null;
            /**
             * Format: int64
             * @description The time for which the record version number must be seen unchanged before the lock is stale, in milliseconds.
             */
            leaseDurationMs: number;
            /** @description The occurrence that the holder runs. */
            occurrence?: string | null;
            /** @description The present or last owner, for people to read. */
            ownerName: string;
            /** @description The record version number, which changes with every acquire and heartbeat. */
            recordVersionNumber: string;
            /** @description The sort key, on a table that has one. */
            sortKey?: string | null;
            /** @description Whether the lock has a holder. */
            state: components["schemas"]["LockState"];
            /** @description The owner name of a waiter who marked the lock, so that its holder learns of it. */
            wantedBy?: string | null;
        };
        /**
         * @description Whether a lock has a holder.
         * @enum {string}
         */
        LockState: "held" | "released";
        /**
         * @description The reason why a lock is not the caller's.
         * @enum {string}
         */
        LostReason: "absent" | "released" | "taken-over" | "version-mismatch" | "queued" | "not-queued";
        /** @description A holder or a ticket that the caller saw unchanged for its own lease. */
        ObservedEntry: {
            /** @description The entry's `holderId` or `ticketId`. */
            holderId: string;
            /**
             * Format: int64
             * @description The holder's `fencingToken`, or the ticket's `number`. Without it, the service makes a second write.
             */
            number?: number | null;
            /**
             * Format: int64
             * @description The entry's permits: required for a holder, without effect for a ticket.
             */
            permits?: number | null;
            /** @description The entry's version. */
            version: string;
        };
        /** @description An operator's change of the last occurrence that is done. */
        OccurrenceRequest: {
            /** @description The lock's key. */
            key: string;
            /**
             * @description The occurrence that counts as the last one that is done: 1 to 1024 bytes. Occurrences that sort after it may
             *     run.
             */
            lastOccurrence: string;
            /** @description The record version number that the operator saw. */
            recordVersionNumber: string;
            /** @description The lock's sort key. Required on a table with a sort key, refused on one without. */
            sortKey?: string | null;
        };
        /** @description The lock records the occurrence as done. */
        OccurrenceResponse: {
            /** @description The last occurrence that is done. */
            lastOccurrence: string;
            /**
             * Format: uuid
             * @description The record version number of the lock.
             */
            recordVersionNumber: string;
        };
        /** @description An item that takes, or took, part in a transaction. */
        Participant: {
            /** @description The item's key. */
            key: components["schemas"]["Item"];
            /** @description The operation: `get`, `put`, `update`, `delete` or `check`. */
            operation: string;
            /** @description The table's name. */
            tableName: string;
        };
        /** @description A refusal or a failure. */
        Problem: {
            /** @description The failure and its remedy, for people to read. */
            detail: string;
            /**
             * Format: int64
             * @description `superseded`: the fencing token that the caller holds.
             */
            fencingToken?: number | null;
            /** @description `invalid-request`: the field at fault. */
            field?: string | null;
            item?: components["schemas"]["Item"] | null;
            lock?: components["schemas"]["Lock"] | null;
            /** @description `held`, `lost`, `wrong-kind`, `exceeds-capacity` and `permits-mismatch` for several keys: the keys that refused. */
            locks?: components["schemas"]["RefusedLock"][] | null;
            /**
             * Format: uuid
             * @description `contended`: the public id of the other transaction. It proves nothing.
             */
            publicId?: string | null;
            reason?: components["schemas"]["LostReason"] | null;
            /** @description `superseded`: the record version number of the lock. */
            recordVersionNumber?: string | null;
            refusedItem?: components["schemas"]["RefusedItem"] | null;
            /**
             * Format: int32
             * @description `condition-failed`: the position of the request, counted from 0.
             */
            request?: number | null;
            /** @description Whether the same request may succeed later, with the same lease id or transaction id. */
            retryable?: boolean;
            /**
             * Format: int64
             * @description `superseded`: the number of the last request that was carried out. The next one needs a higher number.
             */
            sequence?: number | null;
            /**
             * Format: int32
             * @description The HTTP status of this kind.
             */
            status: number;
            /** @description The title of the kind, for people to read. */
            title: string;
            /**
             * Format: uuid
             * @description `unavailable`, `throttled`, where a transaction of one call named no id: its id, by which the outcome can be
             *     read.
             */
            transactionId?: string | null;
            /** @description The kind, which is the member to decide by. */
            type: components["schemas"]["ProblemType"];
        };
        /**
         * @description The kinds of problems. A kind exists only where callers act differently.
         * @enum {string}
         */
        ProblemType: "held" | "lost" | "superseded" | "already-done" | "not-found" | "version-mismatch" | "wrong-kind" | "permits-mismatch" | "exceeds-capacity" | "queue-full" | "forbidden" | "contended" | "rolled-back" | "committed" | "condition-failed" | "transaction-not-found" | "invalid-request" | "too-large" | "unsupported-media-type" | "method-not-allowed" | "unknown-route" | "throttled" | "unavailable" | "corrupt-record" | "misconfigured";
        /** @description Puts an item in place of the existing one. */
        Put: {
            /** @description A condition that must hold for the item as it was when the transaction locked it. */
            ConditionExpression?: string | null;
            /** @description The `#names` of the expressions. */
            ExpressionAttributeNames?: {
                [key: string]: string;
            };
            /** @description The `:values` of the expressions. */
            ExpressionAttributeValues?: components["schemas"]["Item"];
            /** @description The whole item, key included. Names that begin with `leaseholdTx` are refused, here and in expressions. */
            Item: components["schemas"]["Item"];
            /** @description The state of the item to return: `NONE`, `ALL_OLD` or `ALL_NEW`. */
            ReturnValues?: components["schemas"]["ReturnValues"];
            /** @description Whether the problem `condition-failed` shows the item. */
            ReturnValuesOnConditionCheckFailure?: components["schemas"]["ReturnOnFailure"];
            /** @description The table's name, not an ARN. */
            TableName: string;
        };
        /**
         * @description Locks the items that match a key condition and reads them: at most 100.
         *
         *     The items are found in the table, or in an index, and then locked and read in the table by their keys. No other
         *     transaction changes them before the end of this one. Other items that match may come later.
         */
        Query: {
            /** @description The `#names` of the expressions. */
            ExpressionAttributeNames?: {
                [key: string]: string;
            };
            /** @description The `:values` of the key condition. */
            ExpressionAttributeValues?: components["schemas"]["Item"];
            /** @description An index of the table. Default: the table itself. */
            IndexName?: string | null;
            /** @description The key condition. There is no filter. */
            KeyConditionExpression: string;
            /** @description The paths to return. Default: all. */
            ProjectionExpression?: string | null;
            /** @description Whether the sort keys ascend. Default: true. */
            ScanIndexForward?: boolean | null;
            /** @description The table's name, not an ARN. */
            TableName: string;
        };
        /** @description The item of a refusal. */
        RefusedItem: {
            /**
             * Format: int64
             * @description `contended`: the age of the transaction that holds the item, in milliseconds, for people to read.
             */
            holderAgeMs?: number | null;
            /** @description The item's key. */
            key: components["schemas"]["Item"];
            /** @description The table's name. */
            tableName: string;
        };
        /** @description One of several refused keys: its public view, without the payload. */
        RefusedLock: (components["schemas"]["SemaphoreState"] | Record<string, unknown>) & {
            /**
             * Format: int64
             * @description The fencing token. Absent if another kind of client wrote the row.
             */
            fencingToken?: number | null;
            /** @description The key. */
            key: string;
            /**
             * Format: int64
             * @description The time for which the record version number must be seen unchanged before the lock is stale, in milliseconds.
             */
            leaseDurationMs?: number | null;
            /** @description The present or last owner, for people to read. */
            ownerName?: string | null;
            reason?: components["schemas"]["LostReason"] | null;
            /** @description The record version number, which changes with every acquire and heartbeat. */
            recordVersionNumber?: string | null;
            /** @description The sort key, on a table that has one. */
            sortKey?: string | null;
            state?: components["schemas"]["LockState"] | null;
        };
        /**
         * @description The outcome of a release.
         * @enum {string}
         */
        ReleaseOutcome: "released" | "replayed" | "absent";
        /** @description A holder's release, or a waiter's withdrawal. */
        ReleasePermitsRequest: {
            /**
             * Format: int64
             * @description The token of the grant. Without it, the service makes a second write.
             */
            fencingToken?: number | null;
            /** @description The semaphore's key. */
            key: string;
            /** @description The lease id, which proves possession. */
            leaseId: components["schemas"]["Secret"];
            /**
             * Format: int64
             * @description The number of the ticket, where the caller only waits. Without it, the service makes a second write.
             */
            number?: number | null;
            /** @description The semaphore's sort key. Required on a table with a sort key, refused on one without. */
            sortKey?: string | null;
            /** @description Releases only if the holder, or the ticket, still has this version. */
            version?: string | null;
        };
        /** @description A holder's release. */
        ReleaseRequest: {
            /** @description The occurrence of the acquisition, which is now done: no later acquire is granted for it. Not with `delete`. */
            completed?: string | null;
            /**
             * Format: int64
             * @description The time for which the occurrence is remembered at least, in milliseconds. After it, and the retention of all
             *     rows, the row with its data may go, and an acquire for the occurrence is granted again. Absent: for ever. Only
             *     with `completed`.
             */
            completedTtlMs?: number | null;
            /** @description A payload for the next holder, as text. Not with `delete`. */
            data?: string | null;
            /** @description A payload for the next holder, as base64. Not with `delete`. */
            dataBase64?: string | null;
            /** @description If true, the lock and its data are deleted. Default: false. */
            delete?: boolean | null;
            /** @description The lock's key. */
            key: string;
            /** @description The lease id, which proves possession. */
            leaseId: components["schemas"]["Secret"];
            /** @description Releases only if the row still has this record version number. */
            recordVersionNumber?: string | null;
            /** @description The lock's sort key. Required on a table with a sort key, refused on one without. */
            sortKey?: string | null;
        };
        /** @description Nobody holds the lock under this lease id any more. */
        ReleaseResponse: {
            /** @description The outcome of the release. */
            outcome: components["schemas"]["ReleaseOutcome"];
            /**
             * @description True if somebody may wait for the lock: by a mark of `want`, or the release was a repeat. A caller that acquires
             *     the lock again should pause first. A break and a release of permits tell nothing about it.
             */
            wanted?: boolean;
        };
        /**
         * @description Whether an answer tells the capacity that the call consumed.
         * @enum {string}
         */
        ReturnConsumedCapacity: "NONE" | "TOTAL";
        /**
         * @description Whether the answer to a failed condition contains the item.
         * @enum {string}
         */
        ReturnOnFailure: "NONE" | "ALL_OLD";
        /**
         * @description The state of the item that a write returns.
         * @enum {string}
         */
        ReturnValues: "NONE" | "ALL_OLD" | "ALL_NEW" | "UPDATED_OLD" | "UPDATED_NEW";
        /** @description A lease id on its way. Its debug output hides the text. */
        Secret: string;
        /** @description The permits, the holders and the queue of a semaphore. */
        SemaphoreState: {
            /**
             * Format: int64
             * @description The number of free permits.
             */
            available: number;
            /**
             * Format: int64
             * @description The number of permits.
             */
            capacity: number;
            /** @description The version of the capacity: opaque, new with each change by an operator. */
            capacityVersion?: string;
            /** @description An opaque version that changes when permits are released, and when the queue or the capacity changes. */
            changed: string;
            /**
             * @description The age of the semaphore: opaque, new with each grant and each ticket. A request for permits or for a ticket
             *     under a fresh lease id names it.
             */
            epoch?: string;
            /** @description The holders, the oldest first. */
            holders: components["schemas"]["Holder"][];
            /** @description The kind of the row. */
            kind: components["schemas"]["Kind"];
            /** @description The waiters, the first in the queue first. */
            queue: components["schemas"]["Ticket"][];
        };
        /**
         * @description The judge of a dead holder.
         * @enum {string}
         */
        Staleness: "rvn" | "clock";
        /** @description The public view of a waiter. */
        Ticket: {
            /**
             * Format: int64
             * @description The time for which the version must be seen unchanged before the ticket is dead, in milliseconds.
             */
            leaseDurationMs: number;
            /**
             * Format: int64
             * @description The ticket's place in the queue.
             */
            number: number;
            /** @description The owner, for people to read. */
            ownerName: string;
            /**
             * Format: int64
             * @description The number of permits that the ticket waits for.
             */
            permits: number;
            /** @description The public name. */
            ticketId: string;
            /** @description The version, which changes with every refresh. */
            version: string;
        };
        /** @description The state of a transaction, as the service knows it. */
        Transaction: {
            /**
             * Format: int64
             * @description The time of the beginning, in epoch milliseconds.
             */
            createdAtMs: number;
            /** @description Whether all its items are free again. False for a moment after the decision, or until a sweep. */
            finished: boolean;
            /**
             * Format: int64
             * @description The time of the last work on the transaction, in epoch milliseconds.
             */
            lastWorkedAtMs: number;
            /** @description Whether the transaction has more requests than these. A listing shows those that stand in its record. */
            moreRequests?: boolean;
            /** @description The items that a writer past the protocol deleted or replaced before the commit, which is of the others. */
            overwritten?: components["schemas"]["ItemName"][];
            /**
             * Format: uuid
             * @description The public id of the transaction, which proves nothing.
             */
            publicId: string;
            /** @description The reason of the rollback, for people to read. */
            reason?: string | null;
            /** @description The items of the transaction, in the order in which they were locked. */
            requests: components["schemas"]["Participant"][];
            /** @description The progress of the transaction. */
            state: components["schemas"]["TransactionState"];
            /** @description The item of the decided transaction that DynamoDB refuses to free, and the reason, for an operator to read. */
            stuck?: string | null;
            /**
             * Format: uuid
             * @description The secret id, if the caller named it.
             */
            transactionId?: string | null;
        };
        /**
         * @description The progress of a transaction.
         * @enum {string}
         */
        TransactionState: "pending" | "committed" | "rolled-back";
        /** @description A row that is not a readable lock record: an operator must look at it. */
        UnreadableRow: {
            /** @description The mistake in the row. */
            detail: string;
            /** @description The row's key. */
            key: string;
            /** @description The row's sort key, on a table that has one. */
            sortKey?: string | null;
        };
        /** @description Updates or creates the item. */
        Update: {
            /** @description A condition that must hold for the item as it was when the transaction locked it. */
            ConditionExpression?: string | null;
            /** @description The `#names` of the expressions. */
            ExpressionAttributeNames?: {
                [key: string]: string;
            };
            /** @description The `:values` of the expressions. */
            ExpressionAttributeValues?: components["schemas"]["Item"];
            /** @description The item's key. */
            Key: components["schemas"]["Item"];
            /** @description The state of the item to return: `NONE`, `ALL_OLD`, `ALL_NEW`, `UPDATED_OLD` or `UPDATED_NEW`. */
            ReturnValues?: components["schemas"]["ReturnValues"];
            /** @description Whether the problem `condition-failed` shows the item. */
            ReturnValuesOnConditionCheckFailure?: components["schemas"]["ReturnOnFailure"];
            /** @description The table's name, not an ARN. */
            TableName: string;
            /** @description The update expression. */
            UpdateExpression: string;
        };
        /**
         * @description The outcome of a mark.
         * @enum {string}
         */
        WantOutcome: "marked" | "already-marked" | "free" | "not-ours";
        /** @description A waiter's mark on a lock, which its holder learns of. */
        WantRequest: {
            /** @description The lock's key. */
            key: string;
            /** @description The waiter, for people to read: 1 to 1024 bytes. */
            ownerName: string;
            /** @description The lock's sort key. Required on a table with a sort key, refused on one without. */
            sortKey?: string | null;
        };
        /** @description The mark, or the reason why there is none. */
        WantResponse: {
            /** @description The outcome of the mark. */
            outcome: components["schemas"]["WantOutcome"];
        };
        /** @description One of several requested keys: a lock, or, with `capacity`, permits of a semaphore. */
        WantedLock: {
            /**
             * Format: int64
             * @description The number of permits in all, which makes the key a semaphore's. It is that of a new semaphore; an existing one
             *     keeps its capacity.
             */
            capacity?: number | null;
            /**
             * @description The `epoch` of the answer about this semaphore that the caller saw last before this lease id had permits. A
             *     request with an epoch that more than 16 grants or tickets followed, or a grant of several keys, is refused as
             *     `held`, and so is every late copy of it. Only with `capacity`.
             */
            epoch?: string | null;
            /** @description The key: 1 to 2048 bytes of UTF-8. */
            key: string;
            /**
             * @description Dead holders and tickets of the semaphore, at most ten. The caller saw each with the same version for its own
             *     lease. The request is granted only if all of them are unchanged, and then removes them. Only with `capacity`.
             */
            observed?: components["schemas"]["ObservedEntry"][];
            /**
             * @description The record version number that this caller has seen unchanged for at least the record's own lease, by its own
             *     monotonic clock. The request takes over a lock that still has it. Only for a lock.
             */
            observedRecordVersionNumber?: string | null;
            /**
             * Format: int64
             * @description The number of permits of a semaphore. Only with `capacity`. Default: 1.
             */
            permits?: number | null;
            /** @description The sort key: 1 to 1024 bytes. Required on a table with a sort key, refused on one without. */
            sortKey?: string | null;
        };
    };
    responses: never;
    parameters: never;
    requestBodies: never;
    headers: never;
    pathItems: never;
}
