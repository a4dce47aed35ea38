-- Checks the token and writes, atomically.
-- KEYS: the fence key, then the keys of the write. ARGV: the token, then the arguments of the write.
-- Returns {1, result of the write}, or {0, the highest token}.

-- Compares integers as text: Lua's numbers are exact only below 2^53.
local function lower(a, b)
  if #a ~= #b then return #a < #b end
  return a < b
end

local token = ARGV[1]
local highest = redis.call('GET', KEYS[1])
if highest and lower(token, highest) then return {0, highest} end
if highest ~= token then redis.call('SET', KEYS[1], token) end

local function write(KEYS, ARGV)
--WRITE--
end

local function without_first(list)
  local rest = {}
  for index = 2, #list do rest[index - 1] = list[index] end
  return rest
end
return {1, write(without_first(KEYS), without_first(ARGV))}
