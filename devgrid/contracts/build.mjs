// Compiles the contracts with the npm package solc.
//
//   node build.mjs                        write build/*.json (ABI and bytecode) and the supervisor's ABI
//   node build.mjs --into FOLDER          the same into FOLDER/build and FOLDER/abi
//   node build.mjs --tests --into FOLDER  the Solidity tests, into FOLDER/*.json
import { mkdirSync, readFileSync, readdirSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";

const here = dirname(fileURLToPath(import.meta.url));
const repository = resolve(here, "../..");
const solc = createRequire(join(repository, "package.json"))("solc");
const SUPERVISOR_NEEDS = ["MetaScheduler", "JobRepository", "ProviderJobQueues", "ProviderManager", "Credit", "Constants"];
const CODE_SIZE_LIMIT = 24_576; // bytes, EIP-170
// 2018: the queue sizes could be marked view, and are not in the field. 3860, 5574: too much code for a public chain;
// the tests carry a whole grid, and the contracts' size is checked below.
const NOT_A_PROBLEM = ["2018", "3860", "5574"];

function compile(folders) {
  const sources = {};
  for (const folder of folders) {
    for (const file of readdirSync(join(here, folder)).sort()) {
      sources[`${folder}/${file}`] = { content: readFileSync(join(here, folder, file), "utf8") };
    }
  }
  const input = {
    language: "Solidity",
    sources,
    settings: {
      optimizer: { enabled: true, runs: 1000 },
      evmVersion: "shanghai",
      metadata: { bytecodeHash: "none", appendCBOR: false },
      outputSelection: { "*": { "*": ["abi", "evm.bytecode.object", "evm.deployedBytecode.object"] } },
    },
  };
  const output = JSON.parse(solc.compile(JSON.stringify(input)));
  const problems = (output.errors ?? []).filter((problem) => !NOT_A_PROBLEM.includes(problem.errorCode));
  if (problems.length > 0) {
    console.error(problems.map((problem) => problem.formattedMessage).join("\n"));
    process.exit(1);
  }
  return output.contracts;
}

function write(folder, name, value) {
  mkdirSync(folder, { recursive: true });
  writeFileSync(join(folder, `${name}.json`), `${JSON.stringify(value, null, 1)}\n`);
}

function writeContract(folder, name, contract) {
  write(folder, name, { abi: contract.abi, bytecode: `0x${contract.evm.bytecode.object}` });
}

function buildContracts(buildFolder, abiFolder) {
  const contracts = compile(["src"]);
  for (const name of SUPERVISOR_NEEDS) {
    const contract = contracts[`src/${name}.sol`][name];
    const bytes = contract.evm.deployedBytecode.object.length / 2;
    if (bytes > CODE_SIZE_LIMIT) {
      console.error(`${name} has ${bytes} bytes of code; a chain takes at most ${CODE_SIZE_LIMIT}`);
      process.exit(1);
    }
    writeContract(buildFolder, name, contract);
    write(abiFolder, name, contract.abi);
    console.log(`${name}: ${bytes} bytes`);
  }
}

function buildTests(folder) {
  for (const [file, contracts] of Object.entries(compile(["src", "test"]))) {
    for (const [name, contract] of Object.entries(contracts)) {
      if (file.endsWith(".t.sol")) writeContract(folder, name, contract);
    }
  }
}

const { values } = parseArgs({ options: { into: { type: "string" }, tests: { type: "boolean", default: false } } });
if (values.tests) buildTests(values.into);
else if (values.into) buildContracts(join(values.into, "build"), join(values.into, "abi"));
else buildContracts(join(here, "build"), join(repository, "supervisor_tasks/chain/abi"));
