// The documents of the API that the console reads, as docs/openapi.json describes them.
import type { components } from "../../clients/typescript/src/wire.js";

type Schemas = components["schemas"];

export type Lock = Schemas["Lock"];
export type Listing = Schemas["ListResponse"];
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
