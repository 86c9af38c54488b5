// The state of the page, and the loops that keep it fresh.
import { computed, effect, signal } from "@preact/signals";
import { ApiError, get, needsToken } from "./api.js";
import { Observations, type Seen, idOf, isSemaphore } from "./observations.js";
import { type Filter, view } from "./view.js";
import type { About, Listing, Lock, Transaction, TransactionListing, Unreadable } from "./wire.js";

const PAGE = 1000;
/** The size of the first page, which is small: something is shown while the service reads the others. */
const FIRST_PAGE = 100;
/** The default interval of looks: a heartbeat is seen within two seconds. */
const DEFAULT_INTERVAL_MS = 1000;
/** Interval while the page is hidden. */
const HIDDEN_INTERVAL_MS = 10_000;
const MAX_BACKOFF_MS = 10_000;
/** The time without activity after which a transaction is shown as stuck. */
export const STUCK_MS = 60_000;

// The place of the reader.

export type Route =
  | { name: "locks" }
  | { name: "lock"; key: string; sortKey?: string }
  | { name: "transactions"; id?: string };

function parseRoute(hash: string): Route {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  const parameters = new URLSearchParams(query);
  const key = parameters.get("key");
  if (path === "lock" && key !== null) {
    const sortKey = parameters.get("sortKey");
    return sortKey === null ? { name: "lock", key } : { name: "lock", key, sortKey };
  }
  if (path === "transactions") {
    const id = parameters.get("id");
    return id ? { name: "transactions", id } : { name: "transactions" };
  }
  return { name: "locks" };
}

export const route = signal<Route>({ name: "locks" });

export function followAddress(): void {
  const follow = () => (route.value = parseRoute(location.hash));
  addEventListener("hashchange", follow);
  follow();
}

export function addressOf(lock: { key: string; sortKey?: string | null }): string {
  const parameters = new URLSearchParams({ key: lock.key });
  if (lock.sortKey != null) parameters.set("sortKey", lock.sortKey);
  return `#/lock?${parameters}`;
}

export function go(address: string): void {
  location.hash = address;
}

// Time.

/** Monotonic time, which moves the bars. */
export const now = signal(performance.now());
/** Monotonic time in seconds, for words. */
export const nowSeconds = computed(() => Math.floor(now.value / 1000) * 1000);

setInterval(() => {
  if (!document.hidden) now.value = performance.now();
}, 250);

// Connection.

/** The latest looks of one loop. */
interface Looks {
  /** Monotonic time of the last whole answer. */
  answeredAt: number | undefined;
  error: string | undefined;
  /** Duration of the last look and number of its requests. */
  tookMs: number;
  requests: number;
}

export const about = signal<About | undefined>(undefined);
export const intervalMs = signal(DEFAULT_INTERVAL_MS);
export const paused = signal(false);

// Locks.

const observations = new Observations();
const revision = signal(0);
export const loaded = signal(false);
export const unreadable = signal<Unreadable[]>([]);
export const filter = signal<Filter>({ key: "", owner: "", state: "all", sort: "key" });
export const locks = computed(() => {
  void revision.value;
  return view(observations.locks.values(), filter.value);
});

/** The opened lock, with payload and attributes. `undefined`: not read yet. `null`: no such lock. */
export const selected = signal<{ seen: Seen; full: Lock; entries: Observations } | null | undefined>(undefined);
export const selectedError = signal<string | undefined>(undefined);

/**
 * Removes payload and attributes, which would take much memory for ten thousand locks. A lock's own view
 * reads them again.
 */
function withoutPayload(lock: Lock): Lock {
  const { data: _data, dataBase64: _base64, attributes: _attributes, ...rest } = lock;
  return rest;
}

async function readLocks(): Promise<number> {
  const started = performance.now();
  const bad: Unreadable[] = [];
  let requests = 0;
  let cursor: string | undefined;
  do {
    const asked = performance.now();
    const limit = observations.complete || requests > 0 ? PAGE : FIRST_PAGE;
    const page = await get<Listing>("/v1/locks", { limit: String(limit), cursor });
    const arrived = performance.now();
    for (const lock of page.locks) observations.observe(withoutPayload(lock), asked, arrived);
    bad.push(...(page.unreadable ?? []));
    cursor = page.nextCursor ?? undefined;
    requests += 1;
    // The first page is shown before the last one is there.
    if (cursor && !observations.complete) revision.value += 1;
  } while (cursor);
  observations.endListing(started, performance.now());
  unreadable.value = bad;
  loaded.value = true;
  revision.value += 1;
  return requests;
}

/** Whether the reader still looks at this lock: an answer may come late. */
function isOpen(key: string, sortKey: string | undefined): boolean {
  const at = route.value;
  return at.name === "lock" && at.key === key && at.sortKey === sortKey;
}

/** Reads a lock or a semaphore. The service has a route for each, and a refusal names the other route. */
async function readAnyKind(key: string, sortKey?: string): Promise<Lock> {
  const known = observations.locks.get(idOf({ key, ...(sortKey === undefined ? {} : { sortKey }) }));
  const [first, second] =
    known && isSemaphore(known.lock) ? ["/v1/semaphore", "/v1/lock"] : ["/v1/lock", "/v1/semaphore"];
  try {
    return await get<Lock>(first, { key, sortKey });
  } catch (error) {
    if (!(error instanceof ApiError) || error.problem?.type !== "wrong-kind") throw error;
    return get<Lock>(second, { key, sortKey });
  }
}

/** Observes holders and tickets as if each were a lock: each has a version and a lease. */
function observeEntries(entries: Observations, lock: Lock, asked: number): void {
  if (!isSemaphore(lock)) return;
  const arrived = performance.now();
  const { key } = lock;
  for (const { holderId, version, ...holder } of lock.holders) {
    entries.observe(
      { ...holder, key, sortKey: holderId, recordVersionNumber: version, state: "held", attributes: {} },
      asked,
      arrived,
    );
  }
  for (const { ticketId, version, ...ticket } of lock.queue) {
    entries.observe(
      { ...ticket, key, sortKey: ticketId, recordVersionNumber: version, state: "held", attributes: {} },
      asked,
      arrived,
    );
  }
  entries.endListing(asked, arrived);
}

async function readLock(key: string, sortKey?: string): Promise<number> {
  const asked = performance.now();
  const id = sortKey === undefined ? key : `${key}\0${sortKey}`;
  try {
    const lock = await readAnyKind(key, sortKey);
    const seen = observations.observe(withoutPayload(lock), asked, performance.now());
    if (isOpen(key, sortKey)) {
      const entries = selected.value?.entries ?? new Observations();
      observeEntries(entries, lock, asked);
      selected.value = { seen, full: lock, entries };
      selectedError.value = undefined;
    }
  } catch (error) {
    if (!(error instanceof ApiError) || error.status !== 404) {
      if (isOpen(key, sortKey))
        selectedError.value = error instanceof ApiError && error.status !== 0 ? error.message : undefined;
      throw error;
    }
    const seen = observations.locks.get(id);
    if (seen) observations.remove(seen, performance.now());
    // The last view stays on the page, marked as gone.
    if (isOpen(key, sortKey)) selected.value = selected.value ? { ...selected.value } : null;
  }
  revision.value += 1;
  return 1;
}

// Transactions.

export const transactions = signal<Transaction[] | undefined>(undefined);
export const transaction = signal<Transaction | null | undefined>(undefined);
/** False if the service has no list of transactions. */
export const hasTransactionList = signal(true);

async function readTransactions(): Promise<number> {
  const all: Transaction[] = [];
  let requests = 0;
  let cursor: string | undefined;
  try {
    do {
      const page: TransactionListing = await get("/v1/transactions", { limit: String(PAGE), cursor });
      all.push(...page.transactions);
      cursor = page.nextCursor ?? undefined;
      requests += 1;
    } while (cursor && all.length < 10 * PAGE);
    hasTransactionList.value = true;
    transactions.value = all;
  } catch (error) {
    if (!(error instanceof ApiError) || ![404, 405].includes(error.status)) throw error;
    hasTransactionList.value = false;
    transactions.value = [];
  }
  return requests + 1;
}

/**
 * Reads a transaction by either of its ids: lists and refusals name the public one, its owner has the secret one.
 * Public ids are UUIDs of version 8, and secret ones seldom are.
 */
async function readTransaction(id: string): Promise<number> {
  const kinds = id.charAt(14) === "8" ? [{ publicId: id }, { id }] : [{ id }, { publicId: id }];
  for (const [index, parameters] of kinds.entries()) {
    try {
      transaction.value = await get<Transaction>("/v1/transaction", parameters);
      return index + 1;
    } catch (error) {
      if (!(error instanceof ApiError) || ![400, 404].includes(error.status)) throw error;
    }
  }
  transaction.value = null;
  return 2;
}

// The loops.

/** Reads one thing repeatedly. A slow service is asked less often. */
class Loop {
  readonly looks = signal<Looks>({ answeredAt: undefined, error: undefined, tookMs: 0, requests: 0 });
  private failures = 0;
  private isDue = false;
  private wake: () => void = () => undefined;

  /** `look` resolves to the number of its requests. */
  constructor(private readonly look: () => Promise<number>) {}

  /** Looks again at once, or as soon as the look in progress has ended. */
  lookNow(): void {
    this.isDue = true;
    this.wake();
  }

  async run(): Promise<never> {
    for (;;) {
      const started = performance.now();
      this.isDue = false;
      const wait = paused.value || needsToken.value ? intervalMs.value : await this.lookOnce(started);
      const took = performance.now() - started;
      if (!this.isDue) await this.pause(Math.max(wait - took, took / 2, 50));
    }
  }

  /** Returns the time until the next look is due, from the start of this one. */
  private async lookOnce(started: number): Promise<number> {
    const wait = document.hidden ? Math.max(HIDDEN_INTERVAL_MS, intervalMs.value) : intervalMs.value;
    try {
      const requests = await this.look();
      const ended = performance.now();
      const answeredAt = requests > 0 ? ended : this.looks.value.answeredAt;
      this.looks.value = { answeredAt, error: undefined, tookMs: ended - started, requests };
      this.failures = 0;
      return wait;
    } catch (error) {
      this.failures += 1;
      const message = error instanceof Error ? error.message : String(error);
      this.looks.value = { ...this.looks.value, error: message };
      const retryAfterMs = error instanceof ApiError ? error.retryAfterMs : 0;
      return Math.max(wait, retryAfterMs, Math.min(MAX_BACKOFF_MS, 1000 * 2 ** (this.failures - 1)));
    }
  }

  private pause(ms: number): Promise<void> {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, ms);
      this.wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }
}

/** The loop of the list, which may take many requests. */
const list = new Loop(() => (route.value.name === "transactions" ? readTransactions() : readLocks()));
/** The loop of the opened lock. It does not wait for the list: the bar and the version matter most. */
const opened = new Loop(async () => {
  const at = route.value;
  if (at.name === "lock") return readLock(at.key, at.sortKey);
  return at.name === "transactions" && at.id !== undefined ? readTransaction(at.id) : 0;
});

/** The looks at the list, and the failures of any loop. */
export const connection = computed<Looks>(() => {
  const [all, one] = [list.looks.value, opened.looks.value];
  const answeredAt = Math.max(all.answeredAt ?? 0, one.answeredAt ?? 0) || undefined;
  return { ...all, answeredAt, error: all.error ?? one.error };
});

/** Looks again without waiting for the interval to end. */
export function lookNow(): void {
  opened.lookNow();
  list.lookNow();
}

export function run(): void {
  void opened.run();
  void list.run();
}

/** Looks again when the place, the token or the visibility changes. */
export function lookOnChange(): void {
  // The service tells its name to those who may use it.
  effect(() => {
    if (needsToken.value || about.peek() !== undefined) return;
    void get<About>("/console/about").then(
      (answer) => (about.value = answer),
      () => undefined,
    );
  });
  let place = "";
  effect(() => {
    const at = route.value;
    const next = JSON.stringify(at);
    if (next !== place) {
      if (at.name === "lock") {
        const known = observations.locks.get(at.sortKey === undefined ? at.key : `${at.key}\0${at.sortKey}`);
        selected.value = known ? { seen: known, full: known.lock, entries: new Observations() } : undefined;
        selectedError.value = undefined;
      }
      if (at.name === "transactions") transaction.value = undefined;
      place = next;
      lookNow();
    }
  });
  effect(() => {
    if (!needsToken.value && !paused.value) lookNow();
  });
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) {
      now.value = performance.now();
      lookNow();
    }
  });
}
