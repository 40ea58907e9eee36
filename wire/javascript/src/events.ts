/** Events whose listeners harm nobody. */

import { EventEmitter } from "node:events";
import { asError } from "./errors.js";

/** An EventEmitter whose own class calls the listeners by `tell`. */
export class Events<T extends Record<keyof T, unknown[]>> extends EventEmitter<T> {
  /** Emits; what a listener throws is a warning of the process, and nothing else changes. */
  tell<K extends keyof T>(name: K, ...values: T[K]): void {
    for (const listener of this.rawListeners(name as never)) {
      try {
        const result: unknown = listener.apply(this, values);
        if (result instanceof Promise) result.catch(warn);
      } catch (thrown) {
        warn(thrown);
      }
    }
  }
}

function warn(thrown: unknown): void {
  process.emitWarning(asError(thrown));
}
