// Transactions: those that are open or stuck, and the items of one.
import { useState } from "preact/hooks";
import { age } from "./format.js";
import { Chip, Empty } from "./parts.js";
import { STUCK_MS, go, hasTransactionList, nowSeconds, route, transaction, transactions } from "./store.js";
import { Text } from "./text.js";
import type { Transaction } from "./wire.js";

/** The state for people: an unfinished transaction that is idle is stuck until a sweep. */
function stateOf(one: Transaction): string {
  if (one.finished) return one.state;
  return one.stuck != null || idleMs(one) > STUCK_MS ? "stuck" : one.state;
}

/** The idle time by the service's clock and this machine's, exact to seconds only. */
function idleMs(one: Transaction): number {
  return Math.max(0, performance.timeOrigin + nowSeconds.value - one.lastWorkedAtMs);
}

export function Transactions() {
  const at = route.value;
  const all = transactions.value;
  return (
    <section class="transactions" aria-label="Transactions">
      <Lookup />
      {at.name === "transactions" && at.id !== undefined && <One id={at.id} />}
      {!hasTransactionList.value && (
        <Empty title="This service keeps no list of transactions.">Look one up by its id.</Empty>
      )}
      {hasTransactionList.value && all === undefined && <Empty title="Looking…" />}
      {hasTransactionList.value && all?.length === 0 && <Empty title="No open transactions." />}
      {all !== undefined && all.length > 0 && <Table all={all} />}
    </section>
  );
}

function Lookup() {
  const [id, setId] = useState("");
  return (
    <form
      class="filters"
      aria-label="Look up a transaction"
      onSubmit={(event) => {
        event.preventDefault();
        if (id.trim()) go(`#/transactions?${new URLSearchParams({ id: id.trim() })}`);
      }}
    >
      <label class="field field-wide">
        <span>Transaction id</span>
        <input
          type="search"
          value={id}
          autocomplete="off"
          spellcheck={false}
          onInput={(event) => setId(event.currentTarget.value)}
        />
      </label>
      <button type="submit" class="button">
        Look up
      </button>
    </form>
  );
}

function Table({ all }: { all: Transaction[] }) {
  const rows = all.toSorted((a, b) => a.lastWorkedAtMs - b.lastWorkedAtMs);
  return (
    <div class="table-frame" tabIndex={0} role="region" aria-label="Open transactions">
      <table>
        <thead>
          <tr>
            <th scope="col">State</th>
            <th scope="col">Transaction</th>
            <th scope="col">Items</th>
            <th scope="col">Begun</th>
            <th scope="col">Last worked on</th>
          </tr>
        </thead>
        <tbody>
          {rows.slice(0, 500).map((one) => (
            <tr key={one.publicId}>
              <td>
                <Chip state={stateOf(one)} />
              </td>
              <td class="mono">
                <a href={`#/transactions?${new URLSearchParams({ id: one.publicId })}`}>
                  <Text of={one.publicId} />
                </a>
              </td>
              <td>{one.requests.length}</td>
              <td>{age(Math.max(0, performance.timeOrigin + nowSeconds.value - one.createdAtMs))} ago</td>
              <td>{age(idleMs(one))} ago</td>
            </tr>
          ))}
        </tbody>
      </table>
      {rows.length > 500 && <p class="quiet">{rows.length - 500} more are not shown.</p>}
    </div>
  );
}

function One({ id }: { id: string }) {
  const one = transaction.value;
  if (one === undefined) return <Empty title="Looking…" />;
  if (one === null) {
    return (
      <Empty title="There is no such transaction.">
        <span class="mono">
          <Text of={id} />
        </span>
      </Empty>
    );
  }
  return (
    <article class="card" aria-label="Transaction">
      <header class="status">
        <Chip state={stateOf(one)} />
        <h2 class="mono">
          <Text of={one.publicId} />
        </h2>
        <a class="close" href="#/transactions" aria-label="Close">
          <span aria-hidden="true">✕</span>
        </a>
      </header>
      <dl class="facts">
        <dt>Begun</dt>
        <dd>{new Date(one.createdAtMs).toLocaleString("en-GB")}</dd>
        <dt>Last worked on</dt>
        <dd>{age(idleMs(one))} ago</dd>
        <dt>Items</dt>
        <dd>{one.finished ? "all free again" : "locked until it ends"}</dd>
        {one.reason != null && (
          <>
            <dt>Reason</dt>
            <dd>
              <Text of={one.reason} />
            </dd>
          </>
        )}
      </dl>
      {one.requests.length > 0 && (
        <table>
          <thead>
            <tr>
              <th scope="col">Operation</th>
              <th scope="col">Table</th>
              <th scope="col">Key</th>
            </tr>
          </thead>
          <tbody>
            {one.requests.map((item, index) => (
              <tr key={index}>
                <td>{item.operation}</td>
                <td class="mono">
                  <Text of={item.tableName} />
                </td>
                <td class="mono">
                  <Text of={JSON.stringify(item.key)} />
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
    </article>
  );
}
