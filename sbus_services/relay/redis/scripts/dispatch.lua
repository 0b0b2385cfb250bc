-- Turn a client's request into one for each destination, or into an error.
-- ARGV: taken, raw, both empty for a bus call; limit of the backlog, limit of a queue, lifetime of responses, limit of remembered requests,
-- for how many seconds after expiry a sender is remembered; then for each destination:
-- action (send, here or fail), uid, twin, ret, body (for fail the response), tries, seconds left, response if a limit is reached, body for
-- the local queue, for how many seconds this relay holds it to send it at once, cmd.
-- Returns for each the result, and the token if it is held.
local taken, raw = ARGV[1], ARGV[2]
local backlog, most, lifetime = tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
if taken ~= '' and not release(taken, raw) then return {} end
local said = {}
for i = 8, #ARGV, 11 do
  local what, uid, twin, ret, body, tries = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4], ARGV[i + 5]
  local deadline = now() + tonumber(ARGV[i + 6])
  count('requests')
  local full = redis.call('HLEN', P .. 'backlog') >= backlog or (what == 'here' and not has_room(P .. 'remote', most))
  if what == 'fail' then
    count('requests-refused')
    said[#said + 1] = { answer(ret, body, most, lifetime, true), '' }
  elseif full then
    count('requests-full')
    said[#said + 1] = { answer(ret, ARGV[i + 7], most, lifetime, true), '' }
  else
    local token = ''
    redis.call('HSET', P .. 'backlog', uid, body)
    redis.call('ZADD', R .. 'deadlines', stamp(deadline), uid)
    if what == 'here' then
      redis.call('ZADD', R .. 'open:' .. twin, stamp(deadline), uid)
      remember_asker(twin, uid, ARGV[i + 10], deadline, tonumber(ARGV[7]), tonumber(ARGV[6]))
      redis.call('RPUSH', P .. 'remote', ARGV[i + 8])
    else
      token = enqueue('q:' .. uid, twin, body, tries, deadline, tonumber(ARGV[i + 9]))
    end
    said[#said + 1] = { 'accepted', token }
  end
end
return said
