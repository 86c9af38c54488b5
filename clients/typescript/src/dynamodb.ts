/** Converts between JavaScript's values and DynamoDB JSON. */
import { InvalidRequestError } from "./errors.js";
import { bytesFromBase64, bytesToBase64 } from "./payload.js";
import { ExactNumber, type Item } from "./values.js";
import type { components } from "./wire.js";

type AttributeValue = components["schemas"]["AttributeValue"];
type WireItem = components["schemas"]["Item"];

/** Returns the DynamoDB JSON of an object. Members that are undefined are left out, as in JSON. */
export function itemToWire(item: object): WireItem {
  if (!isPlain(item)) throw refused("An item, a key and values are plain objects", item);
  const members = Object.entries(item).filter(([, value]) => value !== undefined);
  return Object.fromEntries(members.map(([name, value]) => [name, valueToWire(value)]));
}

export function itemFromWire(item: WireItem): Item {
  return Object.fromEntries(Object.entries(item).map(([name, value]) => [name, valueFromWire(value)]));
}

/** Returns the item of an answer, if it has one. */
export function answerFromWire({ item }: { item?: WireItem | null }): Item | undefined {
  return item == null ? undefined : itemFromWire(item);
}

function valueToWire(value: unknown): AttributeValue {
  if (value === null) return { NULL: true };
  if (typeof value === "string") return { S: value };
  if (typeof value === "boolean") return { BOOL: value };
  if (isNumber(value)) return { N: numberToWire(value) };
  if (value instanceof Uint8Array) return { B: bytesToBase64(value) };
  if (Array.isArray(value)) return { L: value.map(valueToWire) };
  if (value instanceof Set) return setToWire([...(value as Set<unknown>)]);
  if (typeof value === "object" && isPlain(value)) return { M: itemToWire(value) };
  throw refused("DynamoDB has no type for this", value);
}

function setToWire(members: unknown[]): AttributeValue {
  if (members.length > 0) {
    if (members.every((member) => typeof member === "string")) return { SS: members };
    if (members.every(isNumber)) return { NS: members.map(numberToWire) };
    if (members.every((member) => member instanceof Uint8Array)) return { BS: members.map(bytesToBase64) };
  }
  throw new InvalidRequestError("A set has texts, or numbers, or bytes, all of one kind, and is not empty.", "item");
}

function isNumber(value: unknown): value is number | bigint | ExactNumber {
  return typeof value === "number" || typeof value === "bigint" || value instanceof ExactNumber;
}

function numberToWire(value: number | bigint | ExactNumber): string {
  if (typeof value === "number" && !Number.isFinite(value)) throw refused("DynamoDB cannot store this number", value);
  return value.toString();
}

function isPlain(value: object): boolean {
  const prototype: unknown = Object.getPrototypeOf(value);
  return prototype === null || prototype === Object.prototype;
}

function refused(message: string, value: unknown): InvalidRequestError {
  const shown = typeof value === "number" ? String(value) : Object.prototype.toString.call(value);
  return new InvalidRequestError(`${message}: ${shown}.`, "item");
}

function valueFromWire(value: AttributeValue): unknown {
  if ("S" in value) return value.S;
  if ("N" in value) return numberFromWire(value.N);
  if ("B" in value) return bytesFromBase64(value.B);
  if ("BOOL" in value) return value.BOOL;
  if ("NULL" in value) return null;
  if ("M" in value) return itemFromWire(value.M);
  if ("L" in value) return value.L.map(valueFromWire);
  if ("SS" in value) return new Set(value.SS);
  if ("NS" in value) return new Set(value.NS.map(numberFromWire));
  return new Set(value.BS.map(bytesFromBase64));
}

function numberFromWire(text: string): number | bigint | ExactNumber {
  const number = Number(text);
  const exact = decimal(text);
  if (exact === undefined) return new ExactNumber(text);
  const isSafe = !Number.isInteger(number) || Number.isSafeInteger(number);
  if (isSafe && sameDecimal(exact, decimal(String(number)))) return number;
  if (exact.exponent >= 0) return BigInt(exact.sign + exact.digits + "0".repeat(exact.exponent));
  return new ExactNumber(text);
}

/** A number as `digits` times ten to the `exponent`, without zeros at either end of the digits. */
interface Decimal {
  sign: string;
  digits: string;
  exponent: number;
}

function decimal(text: string): Decimal | undefined {
  const [, sign = "", whole = "", fraction = "", exponent = "0"] =
    /^([+-]?)(\d*)\.?(\d*)(?:[eE]([+-]?\d+))?$/.exec(text) ?? [];
  const digits = (whole + fraction).replace(/^0+/, "");
  const stripped = digits.replace(/0+$/, "");
  if (whole + fraction === "") return undefined;
  if (stripped === "") return { sign: "", digits: "0", exponent: 0 };
  return {
    sign: sign === "-" ? "-" : "",
    digits: stripped,
    exponent: Number(exponent) - fraction.length + digits.length - stripped.length,
  };
}

function sameDecimal(one: Decimal, other: Decimal | undefined): boolean {
  return one.sign === other?.sign && one.digits === other.digits && one.exponent === other.exponent;
}
