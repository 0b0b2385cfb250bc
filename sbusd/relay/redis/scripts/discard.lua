-- What is no message is answered as far as it can be, or kept for a person.
-- ARGV: taken, raw, bound of what is kept, bound of a queue, lifetime; then for each answer: ret, body.
if not release(ARGV[1], ARGV[2]) then return 'lost' end
count('messages-malformed')
local answered = 0
for i = 6, #ARGV, 2 do
  if answer(ARGV[i], ARGV[i + 1], tonumber(ARGV[4]), ARGV[5]) == 'answered' then answered = answered + 1 end
end
if answered > 0 then return 'answered' end
if redis.call('LLEN', R .. 'refused') < tonumber(ARGV[3]) then
  redis.call('RPUSH', R .. 'refused', ARGV[2])
  return 'kept'
end
count('messages-malformed-gone')
return 'gone'
