// All jobs that this user may see.
import { say } from "./kit.js";

export async function show() {
  say("Open the tab “Zeus cost” of a DAG or of a run.");
}
