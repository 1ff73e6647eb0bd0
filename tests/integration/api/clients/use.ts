// A program over the types that openapi-typescript makes of the description: it compiles only while they say this much.
import type { components, operations } from "./api";

const send: operations["send_message"]["requestBody"]["content"]["application/json"] = {
  target: "push",
  value: "hello",
  delay: "90s",
};
const accepted: operations["send_message"]["responses"][202]["content"]["application/json"] = {
  id: "hello-7",
  due: 1800000000000,
  due_utc: "2027-01-15T08:00:00.000Z",
  position: { topic: "reminders", partition: 3, offset: 8 },
  place: "reminders/3/8",
};
const asked: operations["list_messages"]["parameters"]["query"] = { target: send.target, limit: 10 };

export function nextPage(page: components["schemas"]["HeldPage"]): string | null {
  return page.next;
}

export function words(problem: components["schemas"]["Problem"]): string {
  return `${problem.status} ${problem.type}: ${problem.detail} (${problem.request_id ?? "no name"})`;
}

export const told = [accepted.position.offset, accepted.place, asked?.limit, nextPage({ items: [], next: null, partial: false, missing: [] })];
