/** HTTPS with an authority, or a certificate, of one's own, which the global `fetch` does not take. Needs Node. */
import type { Agent } from "node:https";
import { InvalidRequestError } from "./errors.js";
import type { Fetch } from "./http.js";
import { messageOf } from "./transport.js";

/** An authority and a certificate of one's own, as PEM: the content of the files. */
export interface Tls {
  /** The authorities to trust, in place of the known ones. */
  ca?: string | Uint8Array | undefined;
  /** The client's certificate, for a service that asks for one (mutual TLS). Needs `key`. */
  cert?: string | Uint8Array | undefined;
  /** The private key of the certificate. */
  key?: string | Uint8Array | undefined;
  /** The password of the key. */
  passphrase?: string | undefined;
}

/** Returns a `fetch` that uses these. Its idle connections do not keep the process alive. */
export function tlsFetch({ ca, cert, key, passphrase }: Tls): Fetch {
  if ((cert === undefined) !== (key === undefined))
    throw new InvalidRequestError("A certificate needs its key, and a key its certificate.", "tls");
  let agent: Agent | undefined;
  const agentOf = async (): Promise<Agent> => {
    const [https, { createSecureContext }] = await Promise.all([import("node:https"), import("node:tls")]);
    const [trusted, certificate, secret] = [ca, cert, key].map((pem) => pem && Buffer.from(pem));
    const options = {
      ...(trusted && { ca: trusted }),
      ...(certificate && { cert: certificate, key: secret }),
      ...(passphrase !== undefined && { passphrase }),
    };
    if (trusted && !trusted.includes("-----BEGIN")) throw new InvalidRequestError("The ca is no PEM.", "tls");
    try {
      createSecureContext(options);
    } catch (error) {
      throw new InvalidRequestError(`The certificate or its key is none: ${messageOf(error)}`, "tls", { cause: error });
    }
    return new https.Agent({ ...options, keepAlive: true });
  };
  return async (url, { method, headers, body, signal }) => {
    const https = await import("node:https");
    agent ??= await agentOf();
    return new Promise((resolve, reject) => {
      const sent = https.request(url, { method, headers, agent, signal }, (answer) => {
        const parts: Uint8Array[] = [];
        answer.on("data", (part: Uint8Array) => parts.push(part));
        answer.on("error", reject);
        answer.on("end", () => {
          const text = Buffer.concat(parts).toString();
          const get = (name: string) => answer.headers[name]?.toString() ?? null;
          resolve({ status: answer.statusCode ?? 0, headers: { get }, text: () => Promise.resolve(text) });
        });
      });
      sent.on("error", reject);
      sent.end(body);
    });
  };
}
