// The events of one lock, as this page saw them.
import { age } from "./format.js";
import type { Event } from "./observations.js";
import { nowSeconds } from "./store.js";
import { Text } from "./text.js";

const EVENTS: Record<Event["kind"], string> = {
  seen: "First look",
  acquired: "Acquired",
  renewed: "Renewed",
  reacquired: "Acquired again",
  "changed hands": "Changed hands",
  "taken over": "Taken over",
  changed: "Changed",
  released: "Released",
  gone: "Deleted",
};

export function Timeline({ events }: { events: Event[] }) {
  const clock = (at: number) => new Date(performance.timeOrigin + at).toLocaleTimeString("en-GB");
  return (
    <ol class="timeline" tabIndex={0} aria-label="Timeline">
      {events.toReversed().map((event, index) => (
        <li key={`${events.length - index}`} class={`event event-${event.kind.replaceAll(" ", "-")}`}>
          <span class="event-name">
            {EVENTS[event.kind]}
            {event.count > 1 && <b> × {event.count}</b>}
          </span>
          <time>{clock(event.at)}</time>
          <span class="event-age">{age(Math.max(0, nowSeconds.value - event.at))} ago</span>
          <span class="event-detail">
            {event.kind !== "renewed" && (
              <>
                <Text of={event.ownerName} />
                {event.previousOwnerName !== undefined && (
                  <>
                    {" after "}
                    <Text of={event.previousOwnerName} />
                  </>
                )}
                {event.fencingToken !== undefined && event.kind !== "released" && event.kind !== "gone" && (
                  <span class="mono quiet"> {event.fencingToken}</span>
                )}
              </>
            )}
          </span>
        </li>
      ))}
    </ol>
  );
}
