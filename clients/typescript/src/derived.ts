/** The ids of transactions that are derived from business keys. Rule T7. */

/**
 * The key under which the id of the next try is derived from that of a try that was rolled back. Every process that
 * repeats the first one comes to the same next one.
 */
export const NEXT_TRY = "next try";

/**
 * Derives the id of a transaction from a business key, such as the number of an order, for `transact`: a UUID of version
 * 8, as in RFC 9562, B.2. `namespace` is a UUID of the application. It is a secret: whoever knows it can compute the ids,
 * and an id is the right to add to a transaction and to end it.
 *
 * @throws TypeError if the namespace is no UUID
 */
export async function deriveTransactionId(namespace: string, key: string): Promise<string> {
  const digits = namespace.replaceAll("-", "");
  if (!/^[0-9a-f]{32}$/i.test(digits)) throw new TypeError("the namespace must be a UUID");
  const prefix = Uint8Array.from({ length: 16 }, (_, index) =>
    Number.parseInt(digits.slice(2 * index, 2 * index + 2), 16),
  );
  const name = new Uint8Array([...prefix, ...new TextEncoder().encode(key)]);
  const bytes = new Uint8Array(await crypto.subtle.digest("SHA-256", name)).slice(0, 16);
  bytes[6] = ((bytes[6] ?? 0) & 0x0f) | 0x80;
  bytes[8] = ((bytes[8] ?? 0) & 0x3f) | 0x80;
  return hexOf(bytes).replace(/^(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-");
}

export function hexOf(bytes: Uint8Array): string {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
