// An agent run with the official openai package over one socket: every turn is a create that goes on from the last.
//
// npm install --no-save openai ws; node demos/openai_js.mjs --url http://127.0.0.1:8765
import OpenAI from "openai";
import { ResponsesWS } from "openai/resources/responses/ws";
import { FUNCTIONS, PROMPT, TOOLS, apiKey, baseURL, check } from "./common.mjs";

const socket = new ResponsesWS(new OpenAI({ baseURL, apiKey }));

/** Send a create; its response once it is complete. */
function respond(fields) {
  return new Promise((resolve, reject) => {
    socket.once("response.completed", (event) => resolve(event.response));
    for (const kind of ["error", "response.failed", "response.incomplete"]) socket.once(kind, reject);
    socket.send({ type: "response.create", tools: TOOLS, store: false, ...fields });
  });
}

const outputs = [];
let text = "";
let previous_response_id;
let input = [{ role: "user", content: PROMPT }];
while (input.length) {
  const response = await respond({ input, previous_response_id });
  previous_response_id = response.id;
  input = [];
  for (const item of response.output) {
    if (item.type === "message") text = item.content[0].text;
    if (item.type !== "function_call") continue;
    const output = FUNCTIONS[item.name](JSON.parse(item.arguments));
    outputs.push(output);
    input.push({ type: "function_call_output", call_id: item.call_id, output });
  }
}
socket.close();
check(text, outputs);
