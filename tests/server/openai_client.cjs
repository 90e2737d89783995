// Asks a server with OpenAI's client for JavaScript. Writes every response object into a TypeScript file, with the type
// that the client promises for it, and what was answered as JSON to stdout.
// Arguments: address, key, path of the file.
const { writeFileSync } = require("node:fs");
const OpenAI = require("openai");

const [, , baseURL, apiKey, path] = process.argv;
const client = new OpenAI.OpenAI({ baseURL, apiKey, maxRetries: 0 });
const typed = [];
const found = {};

function keep(type, value) {
  typed.push(`export const a${typed.length}: OpenAI.${type} = ${JSON.stringify(value)};`);
  return value;
}

async function pieces(type, stream) {
  const all = [];
  for await (const piece of stream) all.push(keep(type, piece));
  return all;
}

const CHAT = "Chat.Completions.ChatCompletion";
const paint = {
  type: "function",
  function: {
    name: "paint",
    parameters: { type: "object", properties: { colour: { enum: ["red", "blue"] } }, required: ["colour"] },
  },
};
const schema = {
  type: "object", properties: { a: { enum: [1, 2] } }, required: ["a"], additionalProperties: false,
};
const says = (content, more = {}) => ({
  model: "tiny", messages: [{ role: "user", content }], max_tokens: 80, ...more,
});
const call = '<tool_call>\n{"name": "paint", "arguments": {"colour": "red"}}\n</tool_call>';
const format = { type: "json_schema", json_schema: { name: "a", strict: true, schema } };

async function run() {
  const chats = client.chat.completions;
  const plain = keep(CHAT, await chats.create(says("A wall.", { logprobs: true, top_logprobs: 3, seed: 1 })));
  found.plain = [plain.choices[0].message.content, plain.choices[0].logprobs.content.map((each) => each.token).join("")];
  const two = keep(CHAT, await chats.create(says("A wall.", { n: 2, temperature: 0.5, seed: 1 })));
  found.two = two.choices.map((choice) => choice.index);
  const options = { stream: true, stream_options: { include_usage: true }, logprobs: true, top_logprobs: 2 };
  const streamed = await pieces("Chat.Completions.ChatCompletionChunk", await chats.create(says("A wall.", options)));
  found.streamed = streamed.map((piece) => piece.choices[0]?.delta.content ?? "").join("");
  found.usage = streamed.at(-1).usage.completion_tokens === plain.usage.completion_tokens;

  const called = keep(CHAT, await chats.create(says(call, { tools: [paint], tool_choice: "required" })));
  found.called = called.choices[0].message.tool_calls.map((each) => JSON.parse(each.function.arguments));
  found.reason = called.choices[0].finish_reason;
  // The helper puts a stream together, and throws for one that is not whole.
  const runner = chats.stream(says(`Well. ${call}`, { tools: [paint] }));
  for await (const piece of runner) keep("Chat.Completions.ChatCompletionChunk", piece);
  const final = await runner.finalChatCompletion();
  found.final = [final.choices[0].message.content, final.choices[0].message.tool_calls[0].function.name];
  let asked = 0;
  const agent = chats.runTools({
    ...says(call),
    tools: [{ type: "function", function: { ...paint.function, parse: JSON.parse, function: ({ colour }) => { asked += 1; return colour; } } }],
  }, { maxChatCompletions: 2 });
  await agent.done().catch((error) => { found.agent_error = String(error); });
  found.asked = asked > 0;

  const parsed = await chats.parse(says('{"a": 2}', { response_format: format }));
  found.parsed = JSON.parse(parsed.choices[0].message.content);
  keep(CHAT, await chats.create(says('{"a": 1}', { response_format: format })));
  const cut = keep(CHAT, await chats.create(says("A wall that is long.", { max_tokens: 2 })));
  found.cut = cut.choices[0].finish_reason;

  const text = keep("Completion", await client.completions.create({ model: "tiny", prompt: "A wall", max_tokens: 5 }));
  found.completion = [text.choices[0].text, ""];
  for await (const piece of await client.completions.create({ model: "tiny", prompt: "A wall", max_tokens: 5, stream: true })) {
    // Before the last piece OpenAI's own server sends null, too, which is missing in the type.
    for (const choice of piece.choices) choice.finish_reason ??= "stop";
    found.completion[1] += keep("Completion", piece).choices[0]?.text ?? "";
  }
  // Fields of a model that other servers have, too, and no type.
  const plainModel = ({ max_model_len, own_model, ...model }) => keep("Model", model);
  for await (const model of client.models.list()) plainModel(model);
  found.model = plainModel(await client.models.retrieve("tiny")).id;

  const wrong = new OpenAI.OpenAI({ baseURL, apiKey: "guess", maxRetries: 0 });
  found.errors = [];
  for (const ask of [
    () => chats.create(says("A.", { temperature: -3 })),
    () => chats.create({ ...says("A."), model: "other" }),
    () => wrong.models.list(),
  ]) {
    await ask().then(() => found.errors.push("none"), (error) => found.errors.push([error.constructor.name, error.param ?? null]));
  }
}

run().then(() => {
  const values = typed.join("\n").replaceAll("\u2028", "\\u2028").replaceAll("\u2029", "\\u2029");
  writeFileSync(path, `import type OpenAI from "openai";\n${values}\n`);
  console.log(JSON.stringify(found));
});
