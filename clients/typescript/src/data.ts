/** The payload of a request: text as text, so that people can read it in the table, and bytes as base64. */
import { InvalidRequestError } from "./errors.js";
import { bytesToBase64, type WirePayload } from "./payload.js";

export function toWire(data: string | Uint8Array | undefined): WirePayload {
  if (data === undefined) return {};
  if (typeof data !== "string" && !(data instanceof Uint8Array)) {
    const kind = Object.prototype.toString.call(data).slice(8, -1);
    throw new InvalidRequestError(`The data must be a string or a Uint8Array, not ${kind}.`, "data");
  }
  return typeof data === "string" ? { data } : { dataBase64: bytesToBase64(data) };
}

/** Returns the payload of a heartbeat: `null` removes the stored one. */
export function changeToWire(data: string | Uint8Array | null | undefined): WirePayload & { deleteData?: true } {
  return data === null ? { deleteData: true } : toWire(data);
}
