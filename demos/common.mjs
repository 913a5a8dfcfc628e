// What the JavaScript demos share: the prompt, the tools, the server's URL, and the check of the result.

export const PROMPT = "Draw a lucky number, measure the temperature in Oslo, and tell me both results exactly.";

// Outputs that nobody can guess: an answer that quotes them proves that the tools ran.
const draw = (limit) => Math.floor(Math.random() * limit);
export const FUNCTIONS = {
  draw_lucky_number: ({ maximum = 1000 }) => String(1 + draw(maximum)),
  get_temperature: ({ city }) => `${(draw(60_000) / 1000 - 20).toFixed(3)} °C in ${city}`,
};

export const TOOLS = [
  {
    type: "function",
    name: "draw_lucky_number",
    description: "Draw a lucky number.",
    parameters: { type: "object", properties: { maximum: { type: "integer" } } },
  },
  {
    type: "function",
    name: "get_temperature",
    description: "Measure the temperature in a city.",
    parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
  },
];

/** A flag's value: `--name value`. */
export function flag(name, fallback) {
  const place = process.argv.indexOf(`--${name}`);
  return place < 0 ? fallback : process.argv[place + 1];
}

/** Where the API is: `--url http://host:port`. */
export const baseURL = `${flag("url", "http://127.0.0.1:8765").replace(/\/v1$/, "")}/v1`;
export const apiKey = process.env.LONGLOOP_API_KEY ?? "unused";

/** Fail unless tools ran and the text quotes what they returned in this very run. */
export function check(text, outputs) {
  console.log(text);
  const missing = outputs.filter((output) => !text.includes(output.split(" ")[0]));
  if (!outputs.length || missing.length) throw new Error(`the answer does not quote ${missing}`);
}
