-- SHA-256 (FIPS 180-4) and HMAC (RFC 2104) in plain Lua 5.1, which has no operators for bits: a word is a number below
-- 2^32. It computes the same in Lua 5.2 to 5.4, where a quotient is a float: all numbers here are whole and far below
-- 2^53. What is computed over and over is AND of two words, byte by byte from a table; XOR follows from it: a ^ b = a +
-- b - 2 (a & b).
local unpack = unpack or table.unpack -- Lua 5.2 and later have it in `table` only
local AND = {}
for a = 0, 255 do
    for b = 0, 255 do
        local both, bit, x, y = 0, 1, a, b
        while x > 0 and y > 0 do
            local p, q = x % 2, y % 2
            both = both + p * q * bit
            x, y, bit = (x - p) / 2, (y - q) / 2, bit * 2
        end
        AND[a * 256 + b] = both
    end
end

local function band(a, b)
    local a0, a1, a2 = a % 256, a % 65536, a % 16777216
    local b0, b1, b2 = b % 256, b % 65536, b % 16777216
    return AND[a0 * 256 + b0]
        + AND[a1 - a0 + (b1 - b0) / 256] * 256
        + AND[(a2 - a1) / 256 + (b2 - b1) / 65536] * 65536
        + AND[(a - a2) / 65536 + (b - b2) / 16777216] * 16777216
end

local function xor(a, b)
    return a + b - 2 * band(a, b)
end

-- Rotation to the right by n bits, where `power` is 2^n; and the same without what falls off.
local function rotated(x, power)
    local low = x % power
    return (x - low) / power + low * (4294967296 / power)
end

local function shifted(x, power)
    return (x - x % power) / power
end

-- The constants are the first 32 bits behind the point of the roots of the first primes.
local function bits_of_root(number, root)
    local value = number ^ (1 / root)
    return math.floor((value - math.floor(value)) * 4294967296)
end

local K, START, primes = {}, {}, {}
local candidate = 2
while #primes < 64 do
    local is_prime = true
    for _, prime in ipairs(primes) do
        is_prime = is_prime and candidate % prime ~= 0
    end
    if is_prime then
        primes[#primes + 1] = candidate
        K[#primes] = bits_of_root(candidate, 3)
        START[#primes] = #primes <= 8 and bits_of_root(candidate, 2) or nil
    end
    candidate = candidate + 1
end

-- One block of 64 bytes, taken into the eight words of `state`; returns eight new ones.
local function compressed(state, text, first)
    local w = {}
    for i = 1, 16 do
        local p, q, r, s = text:byte(first + 4 * i - 4, first + 4 * i - 1)
        w[i] = ((p * 256 + q) * 256 + r) * 256 + s
    end
    for i = 17, 64 do
        local x, y = w[i - 15], w[i - 2]
        local s0 = xor(xor(rotated(x, 128), rotated(x, 262144)), shifted(x, 8))
        local s1 = xor(xor(rotated(y, 131072), rotated(y, 524288)), shifted(y, 1024))
        w[i] = (w[i - 16] + s0 + w[i - 7] + s1) % 4294967296
    end
    local a, b, c, d, e, f, g, h = unpack(state)
    local a_and_b = band(b, c)
    for i = 1, 64 do
        local s1 = xor(xor(rotated(e, 64), rotated(e, 2048)), rotated(e, 33554432))
        local choice = band(e, f) + g - band(e, g)
        local t1 = h + s1 + choice + K[i] + w[i]
        local s0 = xor(xor(rotated(a, 4), rotated(a, 8192)), rotated(a, 4194304))
        local b_and_c = a_and_b
        a_and_b = band(a, b)
        local majority = b_and_c + band(a, b + c - 2 * b_and_c)
        h, g, f, e, d, c, b, a = g, f, e, (d + t1) % 4294967296, c, b, a, (t1 + s0 + majority) % 4294967296
    end
    local new = { a, b, c, d, e, f, g, h }
    for i = 1, 8 do
        new[i] = (new[i] + state[i]) % 4294967296
    end
    return new
end

local function be32(number)
    local d = number % 256
    local c = (number - d) / 256 % 256
    local b = (number - d - c * 256) / 65536 % 256
    return string.char((number - d - c * 256 - b * 65536) / 16777216, b, c, d)
end

-- The digest of `text`, where `state` has taken in `before` bytes (whole blocks) already.
local function digest(text, state, before)
    local zeros = (55 - #text) % 64
    local bits = (before + #text) * 8
    text = text .. "\128" .. ("\0"):rep(zeros + 4) .. be32(bits)
    for first = 1, #text, 64 do
        state = compressed(state, text, first)
    end
    local bytes = {}
    for i = 1, 8 do
        bytes[i] = be32(state[i])
    end
    return table.concat(bytes)
end

local function padded_with(key, byte)
    return (key:gsub(".", function(c) return string.char(xor(c:byte(), byte)) end)) .. string.char(byte):rep(64 - #key)
end

-- HMAC with a key of 64 bytes at most: returns a function that gives a text's code as 64 hex digits. What depends on
-- the key alone is computed once.
local function hmac(key)
    local inner = compressed(START, padded_with(key, 0x36), 1)
    local outer = compressed(START, padded_with(key, 0x5c), 1)
    return function(text)
        local code = digest(digest(text, inner, 64), outer, 64)
        return (code:gsub(".", function(c) return ("%02x"):format(c:byte()) end))
    end
end

return { hmac = hmac }
