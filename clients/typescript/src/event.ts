/** Keys from an event. */
import { InvalidRequestError } from "./errors.js";

/** The key: a template such as `orders/{detail.id}`, or a function of event and context. */
export type KeyOf<Event, Context> = string | ((event: Event, context: Context) => string);

const TEMPLATE = /^(?:[^{}]|\{[^{}]+\})+$/;
const PLACE = /\{([^{}]+)\}/g;
const PATH = /^[^.[\]]+(?:\[\d+\])*(?:\.[^.[\]]+(?:\[\d+\])*)*$/;
const PART = /\[(\d+)\]|([^.[\]]+)/g;

/** Returns the function that reads the key from event and context. Refuses a template that is none. */
export function keyReader<Event, Context>(key: KeyOf<Event, Context>): (event: Event, context: Context) => string {
  if (typeof key === "function") return key;
  const places = [...key.matchAll(PLACE)].map(([, path = ""]) => path);
  if (!TEMPLATE.test(key) || !places.every((path) => PATH.test(path)))
    throw new InvalidRequestError(`${JSON.stringify(key)} is no template: a path in braces is {name.name[0]}.`, "key");
  return (event) => key.replace(PLACE, (_, path: string) => textAt(event, path));
}

function textAt(event: unknown, path: string): string {
  let value = event;
  for (const [, index, name = ""] of path.matchAll(PART)) {
    if (index !== undefined) value = Array.isArray(value) ? value[Number(index)] : undefined;
    else if (typeof value === "object" && value !== null && !Array.isArray(value) && Object.hasOwn(value, name))
      value = (value as Record<string, unknown>)[name];
    else value = undefined;
    if (value === undefined || value === null) throw new InvalidRequestError(`The event has no ${path}.`, "key");
  }
  if ((typeof value === "string" && value !== "") || Number.isSafeInteger(value)) return String(value);
  throw new InvalidRequestError(`${path} of the event is neither a text nor a whole number.`, "key");
}
