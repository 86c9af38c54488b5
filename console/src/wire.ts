// The documents of the API that the console reads, as docs/openapi.json describes them.
import type { components } from "../../clients/typescript/src/wire.js";

type Schemas = components["schemas"];

export type Semaphore = Schemas["SemaphoreState"];

/** A lock, or a semaphore, or a holder or a ticket of a semaphore with the permits that it has or waits for. */
export type Lock = Omit<Schemas["Lock"], keyof Semaphore> & Partial<Semaphore> & { permits?: number };
export type Listing = Omit<Schemas["ListResponse"], "locks"> & { locks: Lock[] };
export type History = Schemas["HistoryResponse"];
export type HistoryEntry = Schemas["HistoryEntry"];
export type Unreadable = Schemas["UnreadableRow"];
export type Problem = Schemas["Problem"];
export type Transaction = Schemas["Transaction"];
export type Item = Record<string, unknown>;

/** A page of `GET /v1/transactions`. */
export interface TransactionListing {
  transactions: Transaction[];
  nextCursor?: string;
}

/** `GET /console/about`: the service behind the page. */
export interface About {
  service: string;
  version: string;
}
