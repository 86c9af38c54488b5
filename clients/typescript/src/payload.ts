/** The payload of a lock: bytes for the caller, text or base64 on the wire. */

/** The two fields of a payload on the wire, which has at most one of them. */
export interface WirePayload {
  data?: string | null | undefined;
  dataBase64?: string | null | undefined;
}

/** The payload as bytes, and as text if it is UTF-8. */
export interface Payload {
  readonly data?: Uint8Array;
  readonly text?: string;
}

export function fromWire({ data, dataBase64 }: WirePayload): Payload {
  if (typeof data === "string") return { data: new TextEncoder().encode(data), text: data };
  if (typeof dataBase64 === "string") return { data: bytesFromBase64(dataBase64) };
  return {};
}

export function bytesToBase64(bytes: Uint8Array): string {
  let binary = "";
  for (const byte of bytes) binary += String.fromCharCode(byte);
  return btoa(binary);
}

export function bytesFromBase64(base64: string): Uint8Array {
  return Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
}
