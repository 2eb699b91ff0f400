-- What a hook script can see and do. Runs once in every new Lua state, before any user code; returns `setup`.
--
-- Two guarantees hold whatever a script does. It reaches only what is in `base` below: an allow-list without access to
-- metatables, raw writes, other chunks or other threads. And calls share nothing: the script's top level runs again in
-- an empty environment for each call.

local debug_sethook, debug_setupvalue, collect, load, clock = debug.sethook, debug.setupvalue, collectgarbage, load, os.clock
local error, pcall, rawget, setmetatable, tonumber, tostring, type = error, pcall, rawget, setmetatable, tonumber, tostring, type
local byte, find, format, gsub, len, rep, sub = string.byte, string.find, string.format, string.gsub, string.len, string.rep, string.sub
local move, pack, unpack, utf8_len = table.move, table.pack, table.unpack, utf8.len

-- The first value of every answer to the host; wire.py has the same numbers.
local OK, ERROR, TIME, MEMORY, NEEDS_CONFIG = 0, 1, 2, 3, 4
local NO_MEMORY = "not enough memory"
local TICK = 1000           -- instructions between two checks of the budget
local MAX_REPEATS = 1 << 20
local MAX_TEXT = 1024      -- longer results are cut here; the broker's own bounds are tighter
local MAX_ERROR = 500
local MAX_ITEMS = 64       -- of throttle_keys
local MAX_KEY = 1024       -- of a configuration key

-- Why the running call must end, or nil. While it is set, every pcall of the script re-raises.
local stop, wanted
local active, ticks, last = false, 0, nil
local used, longest = 0, 0  -- CPU seconds in all, and of the longest interval between two checks
local most_ticks, most_cpu = 0, 0
local known = {}            -- configuration values by key; false: not set

-- The longest interval between two checks is not counted. On a virtual machine that loses its processor, the clock jumps
-- by the stolen time, and one jump must not fail a call. A script that computes long within few instructions does so in
-- other intervals too. A single library call that takes long is not interrupted here; the broker kills the process.
local function tick()
  if not active then return end
  ticks = ticks + 1
  local now = clock()
  local took = now - (last or now)
  last, used = now, used + took
  if took > longest then longest = took end
  if ticks > most_ticks or used - longest > most_cpu then
    stop = TIME
    error("out of time", 0)
  end
end

-- At the end of the C stack there is no room to call `tick`, so a script that continued there would not be counted.
local function is_overflow(problem)
  return type(problem) == "string" and (find(problem, "C stack overflow", 1, true) or find(problem, "error in error handling", 1, true))
end

local function caught(ok, ...)
  if stop then error("stopped", 0) end
  if not ok then
    if (...) == NO_MEMORY then stop = MEMORY elseif is_overflow((...)) then stop = ERROR end
    if stop then error("stopped", 0) end
  end
  return ok, ...
end

local function handled(handler, ok, ...)
  if ok then return true, ... end
  return false, handler((...))
end

local function get(key)
  if type(key) ~= "string" then error("expected a configuration key (a string), got " .. type(key), 2) end
  local value = known[key]
  if value == nil then
    if len(key) > MAX_KEY or not utf8_len(key) then return nil end
    stop, wanted = NEEDS_CONFIG, key
    error("asking", 0)
  end
  return value or nil
end

local function shown(value)
  local kind = type(value)
  if kind == "string" or kind == "number" or kind == "boolean" or kind == "nil" then return tostring(value) end
  return kind               -- never an address
end

local function read_only(functions)
  local function refuse(_, name) error("the libraries are read-only: cannot set " .. shown(name), 2) end
  return setmetatable({}, { __index = functions, __newindex = refuse, __metatable = false })
end

local function pick(library, names)
  local picked = {}
  for name in string.gmatch(names, "[%a_][%w_]*") do picked[name] = library[name] end
  return picked
end

local text = pick(string, "byte char find gmatch gsub len lower match reverse sub upper")

function text.rep(s, n, between)
  local unit, times = len(s) + (between and len(between) or 0), tonumber(n) or 0
  if times > MAX_REPEATS or times * unit > MAX_REPEATS then error("string.rep: the result would be too long", 2) end
  return rep(s, n, between)
end

function text.format(form, ...)
  if find(gsub(form, "%%%%", ""), "%%[^%a]*p") then error("string.format: %p is not available", 2) end
  local values = pack(...)
  for i = 1, values.n do
    local kind = type(values[i])
    if kind == "table" or kind == "function" then values[i] = kind end
  end
  return format(form, unpack(values, 1, values.n))
end

local tables = pick(table, "concat insert pack remove sort unpack")

function tables.move(from, first, last, to, into)
  if tonumber(first) and tonumber(last) and (last + 0.0) - first > 100000 then error("table.move: too many items", 2) end
  if into == nil then return move(from, first, last, to) end
  return move(from, first, last, to, into)
end

local base = pick(_G, "assert error ipairs next pairs rawequal rawget rawlen select tonumber type _VERSION")
base.tostring = shown
function base.pcall(f, ...) return caught(pcall(f, ...)) end
-- The handler runs after the stack is unwound; inside the error it would run without the budget.
function base.xpcall(f, handler, ...) return handled(handler, caught(pcall(f, ...))) end
base.string = read_only(text)
base.table = read_only(tables)
base.math = read_only(pick(math, [[abs acos asin atan ceil cos deg exp floor fmod huge log max maxinteger min mininteger modf pi rad random
  sin sqrt tan tointeger type ult]]))
base.utf8 = read_only(pick(utf8, "char charpattern codepoint codes len offset"))
base.fila = read_only({ get = get })
base.fairlead = base.fila

local string_methods = getmetatable("")
string_methods.__index = text
string_methods.__metatable = false

-- Nothing of the standard library or of the bridge to Python stays reachable by name.
local standard = _G
for name in next, standard do standard[name] = nil end

-- At most `most` bytes, without a partial character at the end.
local function cut(value, most)
  local ends = most
  while ends > most - 4 and (byte(value, ends + 1) & 0xC0) == 0x80 do ends = ends - 1 end
  return sub(value, 1, ends)
end

-- A value of a result as plain data: text or number, nil if missing, false if neither.
local function plain(value)
  local kind = type(value)
  if kind == "nil" or kind == "number" then return value end
  if kind ~= "string" then return false end
  if len(value) > MAX_TEXT then value = cut(value, MAX_TEXT) end
  return utf8_len(value) and value or false
end

local function error_text(value)
  if type(value) ~= "string" then return "raised a " .. type(value) .. " value" end
  if len(value) > MAX_ERROR then value = cut(value, MAX_ERROR) end
  if utf8_len(value) then return value end
  return (gsub(value, "[\x80-\xFF]", "?"))
end

local read = {}

local function plain_items(list)
  if rawget(list, 2) == nil then return plain(rawget(list, 1)) end
  local items, n = {}, 0
  while n < MAX_ITEMS do
    local item = rawget(list, n + 1)
    if item == nil then break end
    n = n + 1
    items[n] = plain(item)
  end
  return unpack(items, 1, n)
end

function read.on_enqueue(result)
  local keys = rawget(result, "throttle_keys")
  local key, weight, stream = plain(rawget(result, "fairness_key")), plain(rawget(result, "weight")), plain(rawget(result, "stream"))
  if type(keys) == "table" then return OK, key, weight, stream, true, plain_items(keys) end
  if keys ~= nil then keys = false end
  return OK, key, weight, stream, keys
end

function read.on_failure(result)
  return OK, plain(rawget(result, "action")), plain(rawget(result, "delay_ms"))
end

local function headers_of(...)
  local flat = { ... }
  -- The nils reserve room: growing a table entry by entry costs more than the rest of a small call.
  local headers = #flat <= 8 and { a = nil, b = nil, c = nil, d = nil } or { a = nil, b = nil, c = nil, d = nil, e = nil, f = nil, g = nil, h = nil }
  for i = 1, #flat, 2 do headers[flat[i]] = flat[i + 1] end
  return headers
end

local message = {}

function message.on_enqueue(queue, payload_size, ...)
  return { queue = queue, payload_size = payload_size, headers = headers_of(...) }
end

function message.on_failure(queue, id, attempts, failure, reason, progress, ...)
  return { queue = queue, id = id, attempts = attempts, error = failure, reason = reason, progress = progress, headers = headers_of(...) }
end

-- For a script and the function it must define: `compile`, `probe` (run the top level only), `call`, `answer`, `forget`.
return function(name, script, budget_ticks, cpu_seconds)
  local chunk
  local environment = { __index = base, __metatable = false }
  local make, copy_out = message[name], read[name]
  most_ticks, most_cpu = budget_ticks, cpu_seconds
  debug_sethook(tick, "", TICK)

  local function defined(env)
    chunk()
    local hook = rawget(env, name)
    if type(hook) ~= "function" then error("defines no function " .. name, 0) end
    return hook
  end

  local function work(env, msg)
    return defined(env)(msg)
  end

  local function guarded(what, msg)
    local env = setmetatable({ _G = true, on_enqueue = nil, on_failure = nil }, environment)
    env._G = env
    debug_setupvalue(chunk, 1, env)
    stop, ticks, last, used, longest, active = nil, 0, nil, 0, 0, true
    local ok, result = pcall(what, env, msg)
    active = false
    if stop == NEEDS_CONFIG then return NEEDS_CONFIG, wanted end
    if stop == TIME or stop == MEMORY then return stop end
    if stop == ERROR then return ERROR, "C stack overflow" end
    if ok then return OK, result end
    if result == NO_MEMORY then return MEMORY end
    return ERROR, error_text(result)
  end

  local function compile()
    local problem
    chunk, problem = load(script, "=" .. name, "t")
    script = nil
    collect()
    if not chunk then return problem == NO_MEMORY and MEMORY or ERROR, error_text(problem) end
    return OK
  end

  local function probe()
    local status, detail = guarded(defined)
    if status == OK then return OK end
    return status, detail
  end

  local function call(...)
    local status, result = guarded(work, make(...))
    if status ~= OK then return status, result end
    if type(result) ~= "table" then return ERROR, name .. " returned a " .. type(result) .. " instead of a table" end
    return copy_out(result)
  end

  local function answer(key, value)
    known[key] = value or false
  end

  local function forget()
    known = {}
  end

  return compile, probe, call, answer, forget
end
