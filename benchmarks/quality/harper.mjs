// Corrects texts with Harper: a JSON list of texts on stdin, {outputs, seconds, version} on stdout.
// node harper.mjs FOLDER: where `npm install harper.js` was run. The first suggestion of each lint is taken.
import { createRequire } from 'node:module';
import { readFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { pathToFileURL } from 'node:url';

const folder = join(resolve(process.argv[2]), 'node_modules', 'harper.js');
const load = (file) => import(pathToFileURL(join(folder, 'dist', file)));
const { LocalLinter, Dialect } = await load('index.js');
const { binaryInlined } = await load('binaryInlined.js');
const { version } = createRequire(import.meta.url)(join(folder, 'package.json'));
const texts = JSON.parse(readFileSync(0, 'utf8'));
const linter = new LocalLinter({ binary: binaryInlined, dialect: Dialect.American });
await linter.setup();
await linter.lint('This are a warm-up.', { language: 'plaintext' });

const outputs = [];
const started = process.cpuUsage();
for (let text of texts) {
  const lints = await linter.lint(text, { language: 'plaintext' });
  const chosen = lints.filter((lint) => lint.suggestion_count() > 0).sort((a, b) => b.span().start - a.span().start);
  let free = Infinity;
  for (const lint of chosen) {
    if (lint.span().end <= free) {
      free = lint.span().start;
      text = await linter.applySuggestion(text, lint, lint.suggestions()[0]);
    }
  }
  outputs.push(text);
}
const used = process.cpuUsage(started);
console.log(JSON.stringify({ outputs, seconds: (used.user + used.system) / 1e6, version }));
process.exit(0);
