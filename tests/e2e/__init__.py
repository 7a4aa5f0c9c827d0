"""The whole stack, real, as its users meet it. A package, so that its site ends with it and not with all tests.

blows                    what befalls a site's processes: kills, stops, cut connections, full disks
customer                 somebody with an API key who submits jobs and watches them
ends                     what is true of every job in the end
releases                 two releases of the code on one site
test_bad_luck            two hours of blows (soak)
test_first_five_minutes  somebody new, in a browser
test_put_back            a database that is put back in the middle of a job (soak)
test_two_releases        an upgrade and its way back in the middle of a job, with two real releases (soak)
test_way_of_one_job      jobs from their submission to their end, while services and drivers are killed
"""
