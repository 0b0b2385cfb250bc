-- Take up to ARGV[3] messages from the queue ARGV[1] into ARGV[2], the list of what this relay works on.
local raws = {}
for i = 1, tonumber(ARGV[3]) do
  local raw = redis.call('LMOVE', ARGV[1], ARGV[2], 'LEFT', 'RIGHT')
  if not raw then break end
  raws[i] = raw
end
return raws
