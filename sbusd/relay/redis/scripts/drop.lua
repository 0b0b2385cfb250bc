-- An answer that its host refuses, or that nobody waits for any more, ends here. ARGV: id, twin, token, what is counted.
if redis.call('ZSCORE', R .. 'sending:' .. ARGV[2], ARGV[1]) ~= ARGV[3] then return 'lost' end
forget(ARGV[1], ARGV[2])
count(ARGV[4])
return 'dropped'
