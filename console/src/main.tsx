// The page: its frame, its shortcuts, and the sign-in where the service wants a token.
import { render } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { needsToken, setToken, takeTokenFromAddress } from "./api.js";
import { age } from "./format.js";
import { LockPanel, closePanel, pressBreak } from "./lock.js";
import { Filters, LockList } from "./locks.js";
import { Mark } from "./parts.js";
import {
  about,
  connection,
  followAddress,
  intervalMs,
  lookNow,
  lookOnChange,
  nowSeconds,
  paused,
  route,
  run,
} from "./store.js";
import { Text } from "./text.js";
import { theme, nextTheme } from "./theme.js";
import { Transactions } from "./transactions.js";

const INTERVALS: [number, string][] = [
  [1000, "every second"],
  [5000, "every 5 s"],
  [30_000, "every 30 s"],
];

function Header() {
  const at = route.value;
  const inTransactions = at.name === "transactions";
  return (
    <header class="top">
      <a class="brand" href="#/locks">
        <Mark />
        <h1>Leasehold</h1>
      </a>
      {about.value && (
        <span class="service" title={about.value.service}>
          <Text of={about.value.service} />
        </span>
      )}
      <nav aria-label="Views">
        <a href="#/locks" aria-current={inTransactions ? undefined : "page"}>
          Locks
        </a>
        <a href="#/transactions" aria-current={inTransactions ? "page" : undefined}>
          Transactions
        </a>
      </nav>
      <Live />
      <button
        type="button"
        class="icon"
        aria-label={`Colours: ${theme.value}`}
        title={`Colours: ${theme.value}`}
        onClick={nextTheme}
      >
        <span aria-hidden="true">{{ system: "◐", light: "☀", dark: "☾" }[theme.value]}</span>
      </button>
      <button
        type="button"
        class="icon icon-help"
        aria-label="Keyboard shortcuts"
        title="Keyboard shortcuts"
        onClick={() => showHelp()}
      >
        <span aria-hidden="true">?</span>
      </button>
    </header>
  );
}

function Live() {
  const { answeredAt, error, requests, tookMs } = connection.value;
  const state = paused.value
    ? "paused"
    : error !== undefined
      ? "failed"
      : answeredAt === undefined
        ? "starting"
        : "live";
  const silence = answeredAt === undefined ? 0 : nowSeconds.value - answeredAt;
  const words = { paused: "paused", failed: "no answer", starting: "connecting", live: "live" }[state];
  return (
    <div class="live">
      <span class={`dot dot-${state}`} aria-hidden="true" />
      <span role="status">{words}</span>
      {state !== "live" && silence > 2000 && <span class="quiet">as of {age(silence)} ago</span>}
      <label class="hidden" for="interval">
        Look for changes
      </label>
      <select
        id="interval"
        value={paused.value ? "0" : String(intervalMs.value)}
        title={`The last look took ${requests} ${requests === 1 ? "request" : "requests"} and ${Math.round(tookMs)} ms`}
        onChange={(event) => {
          const chosen = Number(event.currentTarget.value);
          paused.value = chosen === 0;
          if (chosen > 0) intervalMs.value = chosen;
          lookNow();
        }}
      >
        {INTERVALS.map(([ms, name]) => (
          <option key={ms} value={String(ms)}>
            {name}
          </option>
        ))}
        <option value="0">paused</option>
      </select>
    </div>
  );
}

function Outage() {
  const { error, answeredAt } = connection.value;
  if (error === undefined || needsToken.value) return null;
  return (
    <p class="banner" role="alert">
      <Text of={error} />{" "}
      {answeredAt === undefined
        ? "Nothing was read yet."
        : "The page shows what it saw last; no lock turns stale meanwhile."}
    </p>
  );
}

function SignIn() {
  const [value, setValue] = useState("");
  const input = useRef<HTMLInputElement>(null);
  useEffect(() => input.current?.focus(), []);
  return (
    <main class="sign-in">
      <form
        class="card"
        onSubmit={(event) => {
          event.preventDefault();
          if (value.trim()) setToken(value.trim());
        }}
      >
        <Mark />
        <h2>This service asks for a token</h2>
        <p>
          Open the address that <code>leasehold console</code> printed, or paste a token of the service. It stays in
          this tab.
        </p>
        <label class="field field-wide">
          <span>Token</span>
          <input
            ref={input}
            type="password"
            value={value}
            autocomplete="off"
            onInput={(event) => setValue(event.currentTarget.value)}
          />
        </label>
        <button type="submit" class="button button-main">
          Continue
        </button>
      </form>
    </main>
  );
}

const SHORTCUTS: [string, string][] = [
  ["/", "filter by key"],
  ["↑ ↓ or k j", "move through the list"],
  ["Enter", "open a lock"],
  ["b", "break the open lock, after a question"],
  ["Esc", "close the open lock"],
  ["?", "this list"],
];

function showHelp(): void {
  document.querySelector<HTMLDialogElement>("#help")?.showModal();
}

function Help() {
  return (
    <dialog id="help" class="dialog" aria-labelledby="help-title">
      <h2 id="help-title">Keyboard shortcuts</h2>
      <dl class="facts">
        {SHORTCUTS.map(([keys, what]) => (
          <div key={keys} class="fact">
            <dt>
              <kbd>{keys}</kbd>
            </dt>
            <dd>{what}</dd>
          </div>
        ))}
      </dl>
      <form method="dialog" class="buttons">
        <button type="submit" class="button">
          Close
        </button>
      </form>
    </dialog>
  );
}

function onShortcut(event: KeyboardEvent): void {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const target = event.target as HTMLElement;
  const typing = target.closest("input:not([type=radio]), select, textarea") !== null;
  if (event.key === "Escape") {
    if (typing) document.querySelector<HTMLElement>("#locks")?.focus();
    else if (route.value.name === "lock") closePanel();
    return;
  }
  if (typing) return;
  const actions: Record<string, () => void> = {
    "/": () => {
      document.querySelector<HTMLInputElement>("#filter-key")?.focus();
    },
    "?": showHelp,
    b: pressBreak,
  };
  const action = actions[event.key];
  if (action) {
    event.preventDefault();
    action();
  }
}

function App() {
  if (needsToken.value) return <SignIn />;
  const at = route.value;
  return (
    <>
      <Header />
      <Outage />
      {at.name === "transactions" ? (
        <main class="page">
          <Transactions />
        </main>
      ) : (
        <main class={`page page-locks${at.name === "lock" ? " with-panel" : ""}`}>
          <div class="column">
            <Filters />
            <LockList />
          </div>
          <LockPanel />
        </main>
      )}
      <Help />
    </>
  );
}

takeTokenFromAddress();
followAddress();
addEventListener("keydown", onShortcut);
const app = document.querySelector("#app");
if (app) {
  // The document has a frame without content until now.
  app.replaceChildren();
  render(<App />, app);
}
lookOnChange();
run();
